"""The elementwise implementations as plain PyTorch operators, for compilers that fuse them with their neighbours.

As custom operators they run as kernels of their own, which is right where graphs run node by node. A compiler such as
Inductor sees only a black box then; given these decompositions it computes masks, dropout and normalization inside the
kernels around them, and nothing but the packed mask, the seed or the statistics reaches memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from loadmaster.executor.memory.implementations.cross_entropy import scaled
from loadmaster.executor.memory.implementations.dropout import mixed, scale_and_threshold, seeded_dropout
from loadmaster.executor.memory.implementations.kernels import exact
from loadmaster.executor.memory.implementations.masks import (
    BITS,
    empty_mask,
    masked_gradient,
    pack_inside,
    packed_dim,
    packed_size,
)
from loadmaster.executor.memory.implementations.norms import (
    MESSAGE,
    batch_norm_apply,
    invert,
    layer_norm_apply,
    norm_input,
    normalize,
)
from loadmaster.executor.memory.implementations.pooling import pool_offsets
from loadmaster.executor.torch_private.inductor import inductor_config
from loadmaster.executor.torch_private.operators import OpOverload, assert_async, overload_of

aten = torch.ops.aten


@cache
def decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """A table to add to a compiler's own. Entries compute by index alone: the layout is the compiler's to choose."""
    return {
        overload_of(pack_inside): _pack_inside,
        overload_of(masked_gradient): _masked_gradient,
        overload_of(pool_offsets): _pool_offsets,
        overload_of(seeded_dropout): _seeded_dropout,
        overload_of(batch_norm_apply): _batch_norm_apply,
        overload_of(layer_norm_apply): _layer_norm_apply,
        overload_of(norm_input): _norm_input,
        overload_of(scaled): _scaled,
        aten.bernoulli.p: _bernoulli,
        aten.nll_loss_backward.default: _nll_loss_backward,
        aten.nll_loss2d_backward.default: _nll_loss_backward,
    }


def _bernoulli(x: Tensor, p: float = 0.5, *, generator: torch.Generator | None = None) -> Any:
    """Draw in the type of ``x``: PyTorch's own for compilers gives booleans, whose products then are 32 bits wide."""
    if generator is not None or inductor_config.fallback_random:
        return NotImplemented
    return (torch.rand_like(x, dtype=torch.float32) < p).to(x.dtype)


def _nll_loss_backward(
    gradient: Tensor,
    scores: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Tensor:
    """Gradient of the scores, elementwise: PyTorch's own writes zeros as large as all scores and scatters into them.
    Inductor's pass that mends it is one for joint graphs, which a planned step's segments are not."""
    dim = min(scores.dim() - 1, 1)
    target = target.unsqueeze(dim)
    along = [-1 if d == dim else 1 for d in range(scores.dim())]
    classes = torch.arange(scores.shape[dim], device=scores.device).view(along)
    if reduction == 1:  # the mean
        gradient = gradient / total_weight
    elif reduction == 0:
        gradient = gradient.unsqueeze(dim)
    if weight is not None:
        gradient = gradient * weight.view(along)
    hit = (classes == target) & (target != ignore_index)
    return torch.where(hit, -gradient, 0.0).to(scores.dtype)


def _pack_inside(x: Tensor, low: float, high: float | None = None) -> Tensor:
    x = x if x.dim() else x.view(1)
    dim = packed_dim(x.shape)
    size, count = x.shape[dim], packed_size(x.shape[dim])
    mask: Tensor | None = None
    # Bit by bit, not as a sum over the bits: compilers make a kernel of its own of that.
    for bit, start in enumerate(range(0, size, max(1, count))):
        elements = x.narrow(dim, start, min(count, size - start))
        inside = ~(elements <= low)
        if high is not None:
            inside = inside & ~(elements >= high)
        bits = inside.to(torch.int32) << bit
        if start + count > size:
            bits = aten.constant_pad_nd(bits, [0, 0] * (x.dim() - 1 - dim) + [0, start + count - size])
        mask = bits if mask is None else mask | bits
    like = empty_mask(x)
    return like if mask is None else _laid_out(mask.to(torch.uint8), like)


def _laid_out(result: Tensor, like: Tensor) -> Tensor:
    """The result with the strides of ``like``, which later views may rely on."""
    return result if result.stride() == like.stride() else aten.copy(torch.empty_like(like), result)


def _masked_gradient(gradient: Tensor, mask: Tensor) -> Tensor:
    shape = gradient.shape or (1,)
    dim = packed_dim(shape)
    bit = torch.arange(BITS, dtype=torch.int32, device=mask.device).view(BITS, *(1,) * (len(shape) - dim))
    bits = (mask.to(torch.int32).unsqueeze(dim) >> bit) & 1
    inside = bits.flatten(dim, dim + 1).narrow(dim, 0, shape[dim]) != 0
    return _laid_out(gradient.where(inside.view(gradient.shape), 0), torch.empty_like(gradient))


def _pool_offsets(indices: Tensor, width: int, *window: Sequence[int]) -> Tensor:
    kernel, stride, padding, dilation = window
    index = indices.to(torch.int32)
    top = (torch.arange(indices.shape[-2], dtype=torch.int32, device=indices.device) * stride[0] - padding[0])[:, None]
    left = torch.arange(indices.shape[-1], dtype=torch.int32, device=indices.device) * stride[1] - padding[1]
    row, column = (index // width - top) // dilation[0], (index % width - left) // dilation[1]
    return _laid_out((row * kernel[1] + column).to(torch.uint8), torch.empty_like(indices))


def _seeded_dropout(x: Tensor, seed: Tensor, p: float) -> Tensor:
    scale, threshold = scale_and_threshold(p)
    number = torch.arange(1, x.numel() + 1, dtype=torch.int64, device=x.device).view(x.shape)
    return _laid_out(x * scale * (mixed(number, seed) >= threshold), torch.empty_like(x))


def _batch_norm_apply(x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    precise = exact(x.dtype)

    def per_channel(values: Tensor) -> Tensor:
        return values.to(precise).view(-1, *(1,) * (x.dim() - 2))

    # In the order of the compiler's own BatchNorm, so that the second computation gives the bits of the first.
    result = (x.to(precise) - per_channel(mean)) * per_channel(rstd)
    if weight is not None:
        result = result * per_channel(weight)
    if bias is not None:
        result = result + per_channel(bias)
    return _laid_out(result.to(x.dtype), torch.empty_like(x))


def _scaled(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    result = (x.to(scale.dtype) * scale).to(dtype)
    return _laid_out(result, x.new_empty(x.shape, dtype=dtype))


def _layer_norm_apply(x: Tensor, *rest: Tensor | None) -> Tensor:
    return _laid_out(normalize(x, *rest).to(x.dtype), x.new_empty(x.shape))


def _norm_input(output: Tensor, *rest: Any) -> Tensor:
    mean, rstd, weight, bias, smallest_weight = rest
    if weight is not None:
        assert_async((weight.abs() >= smallest_weight).all(), MESSAGE)
    return _laid_out(invert(output, mean, rstd, weight, bias).to(output.dtype), torch.empty_like(output))
