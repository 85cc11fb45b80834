"""g-SDDMM as an operator of PyTorch: a value for every edge, joined from its ends and itself.

Its gradient is registered in :mod:`loadmaster.executor.graph.kernels.gradients`.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import torch
from torch import Tensor

from loadmaster.executor.graph.kernels.devices import has_kernels
from loadmaster.executor.graph.kernels.sddmm_plain import sddmm_plain
from loadmaster.executor.graph.kernels.spmm_messages import decode, result_dtype

# Numbers of a row from which on reading rows in order outweighs writing edges out of order.
WIDE_ROW = 16


@torch.library.custom_op("loadmaster::sddmm", mutates_args=())
def sddmm_op(
    left: Tensor,
    right: Tensor | None,
    winner: Tensor | None,
    ptr: Tensor | None,
    neighbour: Tensor | None,
    edge: Tensor | None,
    order: Tensor | None,
    reverse_ptr: Tensor | None,
    reverse_neighbour: Tensor | None,
    reverse_edge: Tensor | None,
    reverse_order: Tensor | None,
    source: Tensor,
    destination: Tensor,
    counts: Sequence[int],
    reverse_counts: Sequence[int],
    work: str,
) -> Tensor:
    """Message of every edge id: [edges, outer * inner] (``each``), or its sum over ``inner``: [edges, outer].

    Arguments are those of :func:`loadmaster.executor.graph.kernels.spmm.spmm_op`. The matrix, by rows and reversed, is
    needed for gradients of operands at v and at u; wide rows are also visited in the order of ``edge``.
    """
    decoded = decode(work)
    if not has_kernels(left.device):
        return sddmm_plain(left, right, winner, source, destination, decoded)
    kernels = importlib.import_module("loadmaster.executor.graph.kernels.sddmm_triton")
    _, reduce, outer, inner = decoded
    shape = (source.numel(), outer if reduce == "inner" else outer * inner)
    result = torch.empty(shape, dtype=result_dtype(left, right), device=left.device)
    visit = edge if outer * inner >= WIDE_ROW else None
    kernels.sddmm_triton(left, right, winner, source, destination, visit, result, decoded)
    return result


@sddmm_op.register_fake
def _(
    left: Tensor,
    right: Tensor | None,
    winner: Tensor | None,
    ptr: Tensor | None,
    neighbour: Tensor | None,
    edge: Tensor | None,
    order: Tensor | None,
    reverse_ptr: Tensor | None,
    reverse_neighbour: Tensor | None,
    reverse_edge: Tensor | None,
    reverse_order: Tensor | None,
    source: Tensor,
    destination: Tensor,
    counts: Sequence[int],
    reverse_counts: Sequence[int],
    work: str,
) -> Tensor:
    _, reduce, outer, inner = decode(work)
    shape = (source.shape[0], outer if reduce == "inner" else outer * inner)
    return left.new_empty(shape, dtype=result_dtype(left, right))
