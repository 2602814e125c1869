"""Captions without torch: a model's graphs in onnxruntime, behind the seam that searches use."""

from coscap.runtime.folder import Loaded, Precision, has_graphs, load_runtime
from coscap.runtime.stepper import GraphState, GraphStepper

__all__ = ["GraphState", "GraphStepper", "Loaded", "Precision", "has_graphs", "load_runtime"]
