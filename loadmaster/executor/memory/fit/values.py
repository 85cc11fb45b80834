"""Values of one step: its loss, its gradients and the buffers it changes; and how two steps differ in them."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from loadmaster.executor.steps.batch import Batch
from loadmaster.executor.steps.step import Step
from loadmaster.executor.steps.unchanged import unchanged

LOSS = "the loss"
GRADIENT = "the gradient of "


@dataclass(frozen=True)
class Difference:
    """One value of a step that is not plain PyTorch's: ``found`` and ``plain`` in words, off by a ``share`` of plain
    PyTorch's value. ``each`` is how far an element is off, the root of the mean square; infinite where there is none to
    compare."""

    what: str
    share: float
    found: str
    plain: str
    each: float = math.inf

    def __str__(self) -> str:
        off = f": off by {self.share:.2g} of it" if math.isfinite(self.share) else ""
        return f"{self.what} is {self.found}, where plain PyTorch has {self.plain}{off}"


@dataclass(frozen=True)
class Comparison:
    """Result of comparing a step with plain PyTorch's, ``said`` in one sentence. ``differs`` is the value that is
    furthest off; None where none is, and where nothing could be compared."""

    said: str
    differs: Difference | None = None


Values = Mapping[str, Tensor | None]
"""Values of a step by name in words, in host memory; a gradient may be None."""


def values_of(
    call: Callable[..., Tensor], step: Step, batch: Batch, before: Callable[[], None] = lambda: None
) -> Values:
    """Run a step, model and loss, once, and leave no trace of it. ``call`` takes the batch and returns the loss;
    ``before`` is called when all is set aside, and may change parameters."""
    with unchanged(step, batch), _same_random(), torch.enable_grad():
        before()
        loss = call(*batch.args, **batch.kwargs)
        # In training autocast ends here, and with it go its copies of the weights.
        torch.clear_autocast_cache()
        loss.backward()  # type: ignore[no-untyped-call]
        found: dict[str, Tensor | None] = {LOSS: _to_host(loss)}
        for name, leaf in _leaves(step, batch):
            found[f"{GRADIENT}{name}"] = None if leaf.grad is None else _to_host(leaf.grad)
            leaf.grad = None
        for name, buffer in step.named_buffers():
            found[f"the buffer {_own(name)}"] = _to_host(buffer)
        return found


def differences(found: Values, plain: Values, allowed: float) -> list[Difference]:
    """Values that differ from plain PyTorch's by more than the allowed share, the largest difference first."""
    differ = [d for d in all_differences(found, plain) if not d.share <= allowed]
    return sorted(differ, key=lambda d: -d.share if d.share == d.share else float("-inf"))


def all_differences(found: Values, plain: Values) -> Iterator[Difference]:
    """Difference of each value from plain PyTorch's; values that are not finite there are left out."""
    for what, there in plain.items():
        here = found.get(what)
        if there is None and here is None:
            continue
        one = torch.zeros_like(here) if there is None and here is not None else there
        assert one is not None
        other = torch.zeros_like(one) if here is None else here
        if other.shape != one.shape:
            yield Difference(what, float("inf"), f"of shape {tuple(other.shape)}", f"shape {tuple(one.shape)}")
            continue
        if not bool(torch.isfinite(one).all()):
            continue
        size, apart = _norm(one), _norm(_wide(other) - _wide(one))
        if apart == 0.0:
            yield Difference(what, 0.0, "", "")
            continue
        share = apart / size if size > 0.0 else float("inf")
        each = math.inf if here is None else apart / math.sqrt(one.numel())
        yield Difference(what, share, _said(here, what), _said(there, what), each)


def size_of_gradients(values: Values) -> float:
    """Root of the mean square of a gradient's elements: the median of all gradients."""
    found = [
        _norm(t) / math.sqrt(t.numel())
        for what, t in values.items()
        if is_gradient(what) and t is not None and t.numel()
    ]
    return statistics.median([size for size in found if math.isfinite(size)] or [0.0])


def is_gradient(what: str) -> bool:
    """Return whether a value of this name is a gradient."""
    return what.startswith(GRADIENT)


def _leaves(step: Step, batch: Batch) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in step.named_parameters():
        if parameter.requires_grad:
            yield _own(name), parameter
    for name, value in batch.named_leaves():
        if isinstance(value, Tensor) and value.is_leaf and value.requires_grad:
            yield f"the input {name}", value


def _own(name: str) -> str:
    return name.removeprefix("model.")


@torch.no_grad()
def _to_host(tensor: Tensor) -> Tensor:
    dense = tensor.detach()
    return (dense.to_dense() if dense.layout is not torch.strided else dense).to("cpu", copy=True)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(_wide(tensor)))


def _said(tensor: Tensor | None, what: str) -> str:
    if tensor is None:
        return "None"
    return f"{_norm(tensor):.6g}" + ("" if what == LOSS else " in norm")


@contextmanager
def _same_random() -> Iterator[None]:
    state: Any = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)
