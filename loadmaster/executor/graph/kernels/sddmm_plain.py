"""g-SDDMM in plain PyTorch: for CPUs, and as the reference for the kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from loadmaster.executor.graph.kernels.spmm_messages import Side, Work, joined, result_dtype, spread, sum_dtype
from loadmaster.executor.graph.kernels.spmm_plain import CHUNK_NUMBERS


def sddmm_plain(
    left: Tensor,
    right: Tensor | None,
    winner: Tensor | None,
    source: Tensor,
    destination: Tensor,
    work: Work,
) -> Tensor:
    """Compute g-SDDMM chunk by chunk: :func:`loadmaster.executor.graph.kernels.sddmm.sddmm_op`."""
    message, reduce, outer, inner = work
    summed = reduce == "inner"
    count = source.numel()
    dtype = result_dtype(left, right)
    exact = sum_dtype(dtype)
    result = torch.empty((count, outer if summed else outer * inner), dtype=dtype, device=source.device)
    step = max(1, CHUNK_NUMBERS // max(1, outer * inner))
    for start in range(0, count, step):
        stop = min(start + step, count)
        ids = torch.arange(start, stop, device=source.device)
        where = {"u": source[start:stop], "v": destination[start:stop], "e": ids}

        def gathered(value: Tensor, side: Side, where: dict[str, Tensor] = where) -> Tensor:
            return spread(value.index_select(0, where[side.target]).to(exact), side.layout, outer, inner)

        other = None if right is None or message.right is None else gathered(right, message.right)
        found = joined(message.join, gathered(left, message.left), other)
        if winner is not None:
            found = found * (winner.index_select(0, where[message.left.target]) == ids[:, None])
        result[start:stop] = found.view(-1, outer, inner).sum(2) if summed else found
    return result
