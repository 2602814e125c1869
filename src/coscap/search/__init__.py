"""How the tokens of a caption are chosen, on NumPy: latent sampling, beam, diverse and constrained beam search."""

from coscap.search.config import SearchSettings
from coscap.search.generate import generate
from coscap.search.model import Caption

__all__ = ["Caption", "SearchSettings", "generate"]
