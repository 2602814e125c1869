"""Data sets: what `coscap data` writes, and the batches that training reads from it."""

from coscap.data.prepared import Prepared, open_prepared

__all__ = ["Prepared", "open_prepared"]
