"""What a picture is: its regions, the detectors that find them, the stores that keep them."""

from coscap.vision.detectors import Detector, load_detector
from coscap.vision.pictures import open_picture
from coscap.vision.regions import GRID_LABEL, Recipe, Regions
from coscap.vision.store import RegionStore, StoreWriter

__all__ = [
    "GRID_LABEL",
    "Detector",
    "Recipe",
    "RegionStore",
    "Regions",
    "StoreWriter",
    "load_detector",
    "open_picture",
]
