"""Blocks that run again in the backward pass, without a second change of their buffers, and with some results kept."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from loadmaster.executor.torch_private.autograd import version_of
from loadmaster.executor.training.selective import Contexts, Keeps, KeptResults

# Buffers that a forward pass has changed, with what they were before it.
Changed = list[tuple[nn.Module, str, Tensor]]


class Recomputed:
    """A block under ``torch.utils.checkpoint``. Buffers that its forward pass changes, such as running statistics of
    batch norm or vectors of spectral norm, are as they were when it runs again, and after that as it left them:
    otherwise they would count each batch twice, or the block would compute something else.

    Args:
        keeps: which operators' results are kept, and not computed again; None: no operator's.
    """

    def __init__(self, block: nn.Module, forward: Callable[..., Any], keeps: Keeps | None = None) -> None:
        self._forward = forward
        self._kept = None if keeps is None else KeptResults(keeps)
        self._buffers = [(m, name) for m in block.modules() for name, b in m._buffers.items() if b is not None]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the forward pass; the backward pass computes its results again."""
        return checkpoint(self._forward, *args, use_reentrant=False, context_fn=self.contexts, **kwargs)

    def contexts(self) -> Contexts:
        """Make the contexts of one run."""
        changed: Changed = []
        first, again = self._noting_changes(changed), _as_before(changed)
        if self._kept is None:
            return first, again
        keeping, giving = self._kept.contexts()
        return _both(first, keeping), _both(again, giving)

    @contextlib.contextmanager
    def _noting_changes(self, changed: Changed) -> Iterator[None]:
        held = [
            (m, name, value, version_of(value)) for m, name in self._buffers if (value := m._buffers[name]) is not None
        ]
        with torch.no_grad():
            values = [value.clone() for _, _, value, _ in held]
        yield
        for (module, name, value, version), before in zip(held, values, strict=True):
            # Kernels of batch norm write their statistics without a new version.
            is_written = version_of(value) != version or hasattr(module, "track_running_stats")
            if is_written or module._buffers.get(name) is not value:
                changed.append((module, name, before))


@contextlib.contextmanager
def _as_before(changed: Changed) -> Iterator[None]:
    """Have buffers for a while as they were before the forward pass."""
    now = [(module, name, module._buffers[name]) for module, name, _ in changed]
    for module, name, before in changed:
        module._buffers[name] = before.clone()
    try:
        yield
    finally:
        for module, name, value in now:
            module._buffers[name] = value


@contextlib.contextmanager
def _both(outer: AbstractContextManager[Any], inner: AbstractContextManager[Any]) -> Iterator[None]:
    with outer, inner:
        yield
