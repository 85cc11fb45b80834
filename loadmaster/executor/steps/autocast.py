"""CUDA's autocast where there is no CUDA: a laptop that captures for a GPU.

PyTorch turns ``torch.autocast("cuda", torch.bfloat16)`` off there, with a warning, but keeps its dtype. The CPU's
autocast of that dtype stands in while a step is traced. The two agree on products and convolutions; on a few other
operators they do not, so capture what is to train on the GPU itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

# The dtype where nobody asked for another: float16 cannot be told from no autocast at all.
_DEFAULT = torch.float16


@contextlib.contextmanager
def autocast_without_cuda() -> Iterator[None]:
    """Let the CPU's autocast stand in for the caller's CUDA autocast on a machine without CUDA; else do nothing."""
    dtype = torch.get_autocast_dtype("cuda")
    asked = not torch.cuda.is_available() and dtype != _DEFAULT and not torch.is_autocast_enabled("cpu")
    with torch.autocast("cpu", dtype) if asked else contextlib.nullcontext():
        yield
