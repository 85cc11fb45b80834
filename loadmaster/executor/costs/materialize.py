"""Real tensors of the shapes that a graph's fake ones have, to run an operator on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from loadmaster.executor.costs.traffic import tensors, value_of

aten = torch.ops.aten


def index_limit(node: fx.Node) -> int:
    """One more than the largest index that the operator's integer arguments may hold; 1 where any other may crash."""
    target = node.target
    args: Any = fx.node.map_arg(node.args, value_of)
    if target in (aten.embedding.default, aten.index_select.default, aten.index.Tensor):
        return int(args[0].shape[0])
    if target is aten.embedding_dense_backward.default:
        return int(args[2])
    if target in (aten.nll_loss_forward.default, aten.nll_loss_backward.default):
        scores = args[0] if target is aten.nll_loss_forward.default else args[1]
        return int(scores.shape[1 if scores.dim() > 1 else 0])
    if target is aten.max_pool2d_with_indices_backward.default:
        height, width = args[1].shape[-2:]
        return int(height * width)
    if getattr(target, "namespace", "") == "loadmaster" and "cross_entropy" in str(target):
        weight = max((t for t in tensors(args) if t.dim() == 2), key=lambda t: t.numel())
        return int(weight.shape[1])
    return 1


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
