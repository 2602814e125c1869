"""What is not in the plain install: which extra brings which package, and the one sentence that says so."""

from collections.abc import Iterator
from contextlib import contextmanager

from coscap.errors import UserError

EXTRAS = {
    "train": ("torch", "h5py", "safetensors", "yaml", "huggingface_hub"),
    "metrics": ("numba", "nltk"),
    "serve": ("fastapi", "starlette", "uvicorn", "python_multipart", "prometheus_client"),
    "bulk": ("ray", "pyarrow"),
    "detectors": ("transformers", "torchvision", "scipy"),
    "export": ("onnx", "onnxscript"),
    "coco": ("pycocoevalcap",),
    "plots": ("matplotlib",),
    "heic": ("pillow_heif",),
    "tensorboard": ("tensorboard",),
}  # as pyproject.toml has them, by the names that are imported


def missing(error: ModuleNotFoundError, what: str) -> UserError:
    """The sentence for a package that is not there; an error that no extra would mend is raised again."""
    package = (error.name or "").partition(".")[0]
    for extra, packages in EXTRAS.items():
        if package in packages:
            return UserError(f"{what} needs {package}; run: pip install 'coscap[{extra}]'.")
    raise error


@contextmanager
def needed(what: str) -> Iterator[None]:
    """Imports inside the block may fail for want of an extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise missing(error, what) from None
