"""How the tokens of a caption are chosen, on NumPy: latent sampling, beam, diverse and constrained beam search."""

from coscap.seam import Caption
from coscap.search.config import SearchSettings
from coscap.search.generate import generate

__all__ = ["Caption", "SearchSettings", "generate"]
