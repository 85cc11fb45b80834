"""Import of torchvision with a build of PyTorch that its compiled operators were not made for.

The wheels of torchvision link against PyTorch's CUDA libraries. With PyTorch for processors alone they do not load,
and then the import of torchvision fails, and with it timm's, transformers' and diffusers'. The operators concerned
select boxes, which no model here does: it is enough that they are declared.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

_DECLARED: list[torch.library.Library] = []  # a declaration lasts as long as its library


def declare_missing() -> None:
    """Declare the operators that torchvision's import asks for, where its compiled ones do not load."""
    found = importlib.util.find_spec("torchvision")
    if _DECLARED or found is None or found.origin is None:
        return
    try:
        for compiled in Path(found.origin).parent.glob("_C*.so"):
            torch.ops.load_library(compiled)
    except OSError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _DECLARED.append(library)
