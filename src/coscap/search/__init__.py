"""How words are chosen: latent sampling, beam, diverse and constrained beam, over one `Step` protocol."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coscap.search.caption import Caption as Caption
    from coscap.search.entry import search as search
    from coscap.search.settings import SearchSettings as SearchSettings

_HOMES = {"Caption": "caption", "SearchSettings": "settings", "search": "entry"}

__all__ = ["Caption", "SearchSettings", "search"]


def __getattr__(name: str) -> Any:
    """Import on first use: settings and captions cost no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
