"""A captioner as ONNX graphs, for programs without torch."""
