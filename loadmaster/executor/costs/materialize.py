"""Real tensors of the shapes that a graph's fake ones have, to run an operator on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from loadmaster.errors import InputError
from loadmaster.executor.costs.traffic import value_of

aten = torch.ops.aten


IndexLimit = Callable[..., int]
_limits: dict[Any, IndexLimit] = {}


def register_index_limit(op: torch._ops.OpOverload, limit: IndexLimit) -> None:
    """Say what an operator's integer tensors may hold: indices below ``limit(*arguments)``.

    Raises:
        InputError: the operator has a limit.
    """
    if op in _limits:
        raise InputError("op", str(op), "already has an index limit", "Register each operator once.")
    _limits[op] = limit


def index_limit(node: fx.Node) -> int:
    """One more than the largest index that the operator's integer arguments may hold; 1 where any other may crash."""
    limit = _limits.get(node.target)
    return 1 if limit is None else int(limit(*fx.node.map_arg(node.args, value_of)))


def _rows(table: Tensor, *_: object) -> int:
    return int(table.shape[0])


def _classes(scores: Tensor) -> int:
    return int(scores.shape[1 if scores.dim() > 1 else 0])


for _op, _limit in (
    (aten.embedding.default, _rows),
    (aten.index_select.default, _rows),
    (aten.index.Tensor, _rows),
    (aten.embedding_dense_backward.default, lambda gradient, indices, rows, *_: int(rows)),
    (aten.nll_loss_forward.default, lambda scores, *_: _classes(scores)),
    (aten.nll_loss_backward.default, lambda gradient, scores, *_: _classes(scores)),
    (
        aten.max_pool2d_with_indices_backward.default,
        lambda gradient, x, *_: int(x.shape[-2] * x.shape[-1]),
    ),
):
    register_index_limit(_op, _limit)


def materialize(value: object, device: torch.device, limit: int) -> Any:
    """The value with a real tensor for every fake one: same shape, strides and dtype, on the device.

    Floating-point tensors hold uniform numbers in [0.1, 1), which no operator overflows or divides by zero on;
    integers are below ``limit``; Booleans are True in half of the places.
    """
    generator = torch.Generator(device).manual_seed(0)

    def real(leaf: object) -> object:
        if isinstance(leaf, torch.device):
            return device
        if not isinstance(leaf, Tensor):
            return leaf
        tensor = torch.empty_strided(tuple(leaf.shape), leaf.stride(), dtype=leaf.dtype, device=device)
        dense = tensor.as_strided(*_without_broadcasts(tensor))
        if leaf.dtype.is_floating_point:
            dense.uniform_(0.1, 1.0, generator=generator)
        elif leaf.dtype == torch.bool:
            dense.random_(0, 2, generator=generator)
        elif leaf.dtype.is_complex:
            dense.fill_(1)
        else:
            dense.random_(0, min(limit, torch.iinfo(leaf.dtype).max), generator=generator)
        return tensor

    return torch.utils._pytree.tree_map(real, value)


def _without_broadcasts(tensor: Tensor) -> tuple[list[int], list[int]]:
    sizes = [1 if stride == 0 else n for n, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    return sizes, list(tensor.stride())
