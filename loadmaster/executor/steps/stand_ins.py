"""Models without values, on the meta device or made under ``FakeTensorMode``: a laptop captures what it cannot hold.

Tracing needs a device, since PyTorch derives no gradient on meta for some operators. So every tensor without values has
a stand-in on the CPU while a step is traced. Nothing writes to it or reads it, so it takes no physical memory.

PyTorch turns ``torch.autocast("cuda", torch.bfloat16)`` off where there is no CUDA, with a warning, but keeps its
dtype; the CPU's autocast of that dtype stands in. The two agree on products and convolutions; on a few other operators
they do not, so capture what is to train on the GPU itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import nn

from loadmaster.executor.steps.batch import Batch
from loadmaster.executor.torch_private.fake_tensors import FakeTensor, unset_fake_temporarily
from loadmaster.executor.torch_private.modules import buffers_of, parameters_of
from loadmaster.executor.torch_private.operators import pytree


def has_no_values(value: object) -> bool:
    """Return whether a value is a tensor on the meta device or a fake tensor."""
    return isinstance(value, torch.Tensor) and (value.is_meta or isinstance(value, FakeTensor))


def lacks_values(model: nn.Module, batch: Batch) -> bool:
    """Return whether a parameter, a buffer or an input has no values."""
    return any(map(has_no_values, (*model.parameters(), *model.buffers(), *pytree.tree_leaves(_parts(batch)))))


@contextlib.contextmanager
def standing_in_for_values(modules: list[nn.Module], batch: Batch, device: str = "cpu") -> Iterator[Batch]:
    """Give the batch to trace with, and the modules stand-ins inside the block for their tensors without values. On
    devices other than the CPU all parameters share one storage, since there even memory that is not touched is taken.
    """
    made = _StandIns(device)
    with (
        unset_fake_temporarily(),
        replaced(modules, batch, lambda v: made.of(v) if has_no_values(v) else v) as stand_ins,
    ):
        yield stand_ins


@contextlib.contextmanager
def replaced(
    modules: list[nn.Module], batch: Batch, stand_in: Callable[[torch.Tensor], torch.Tensor]
) -> Iterator[Batch]:
    """Replace each tensor of the batch and the modules by a stand-in; after the block, modules have their own again."""
    tables: list[tuple[dict[str, Any], dict[str, Any]]] = []
    try:
        for inner in dict.fromkeys(inner for module in modules for inner in module.modules()):
            for held in cast(tuple[dict[str, Any], ...], (parameters_of(inner), buffers_of(inner))):
                tables.append((held, dict(held)))
                for name, tensor in list(held.items()):
                    if tensor is not None:
                        held[name] = stand_in(tensor)
        args, kwargs = pytree.tree_map(lambda v: stand_in(v) if isinstance(v, torch.Tensor) else v, _parts(batch))
        yield Batch(args, kwargs, batch.first)
    finally:
        for held, before in tables:
            for name, tensor in before.items():  # TorchScript's tables have no update
                held[name] = tensor


def _parts(batch: Batch) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return batch.args, dict(batch.kwargs)


class _StandIns:
    def __init__(self, device: str) -> None:
        self.device = device
        self._made: dict[int, torch.Tensor] = {}  # tied parameters stay tied
        self._storage = torch.UntypedStorage(0, device=device)  # type: ignore[no-untyped-call]

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in self._made:
            is_parameter = isinstance(tensor, nn.Parameter)
            if is_parameter and self.device != "cpu":
                empty = self._shared(tensor)
            else:
                empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=self.device)
            trained = tensor.requires_grad
            self._made[id(tensor)] = nn.Parameter(empty, trained) if is_parameter else empty.requires_grad_(trained)
        return self._made[id(tensor)]

    def _shared(self, tensor: torch.Tensor) -> torch.Tensor:
        """Stand-in on the one storage of all parameters: nothing writes to a parameter while a step is traced."""
        last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        size = tensor.element_size() * (1 + last)
        if self._storage.nbytes() < size:
            self._storage.resize_(size)
        empty = torch.empty(0, dtype=tensor.dtype, device=self.device)
        return empty.set_(self._storage, 0, tuple(tensor.shape), tensor.stride())


@contextlib.contextmanager
def autocast_without_cuda() -> Iterator[None]:
    """Let the CPU's autocast stand in for the caller's CUDA autocast on a machine without CUDA; else do nothing."""
    dtype = torch.get_autocast_dtype("cuda")
    # The default, float16, cannot be told from no autocast at all.
    asked = not torch.cuda.is_available() and dtype != torch.float16 and not torch.is_autocast_enabled("cpu")
    with torch.autocast("cpu", dtype) if asked else contextlib.nullcontext():
        yield
