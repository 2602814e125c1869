"""coscap: several captions for a photograph, all true and truly different."""

__version__ = "0.1.0"
