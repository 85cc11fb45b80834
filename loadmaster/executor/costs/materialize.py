"""Real tensors of the shapes that a graph's fake ones have, to run an operator on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from loadmaster.executor.costs.formulas import OperatorFormulas

aten = torch.ops.aten


index_limit = OperatorFormulas("index limit", 1)
"""One more than the largest index that an operator's integer arguments may hold; 1 where any other may crash."""

register_index_limit = index_limit.register


def _rows(table: Tensor, *_: object, **__: object) -> int:
    return int(table.shape[0])


def _classes(scores: Tensor, *_: object, **__: object) -> int:
    return int(scores.shape[1 if scores.dim() > 1 else 0])


for _op, _limit in (
    (aten.embedding.default, _rows),
    (aten.index_select.default, _rows),
    (aten.index.Tensor, _rows),
    (aten.embedding_dense_backward.default, lambda gradient, indices, rows, *_, **__: int(rows)),
    (aten.nll_loss_forward.default, _classes),
    (aten.nll_loss_backward.default, lambda gradient, scores, *_, **__: _classes(scores)),
    (
        aten.max_pool2d_with_indices_backward.default,
        lambda gradient, x, *_, **__: int(x.shape[-2] * x.shape[-1]),
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
