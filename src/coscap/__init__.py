"""coscap: several captions for a photograph, all true and truly different."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coscap.captioner import Captioner as Captioner

__version__ = "0.1.0"
__all__ = ["Captioner", "__version__"]


def __getattr__(name: str) -> Any:
    """Import on first use: the package itself costs no torch."""
    if name == "Captioner":
        from coscap.captioner import Captioner

        return Captioner
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
