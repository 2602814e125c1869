"""Moved to `coscap.models.hub`."""

from coscap.models.hub import Pretrained as Pretrained
from coscap.models.hub import load_pretrained as load_pretrained
from coscap.models.hub import save_pretrained as save_pretrained
