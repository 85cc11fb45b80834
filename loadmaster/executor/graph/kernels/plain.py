"""g-SpMM and g-SDDMM in plain PyTorch: for CPUs, and as the reference for the kernels.

Edges are taken in chunks, so that no tensor has a row for every edge of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from loadmaster.executor.graph.kernels.spmm_messages import (
    Message,
    Side,
    Target,
    Work,
    joined,
    result_dtype,
    spread,
    sum_dtype,
)

Part = tuple[Tensor, Tensor, Tensor]  # of a chunk of edges: rows, edge ids, messages
CHUNK_NUMBERS = 2**22  # of messages held at a time


def edge_messages(
    work: Work, left: Tensor, right: Tensor | None, winner: Tensor | None, where: Mapping[Target, Tensor]
) -> Tensor:
    """Messages of some edges: [edges, outer * inner], in the dtype in which they are added up. ``winner`` is as for
    :func:`loadmaster.executor.graph.kernels.operators.spmm_op`; ``where`` gives, at each place, its row for each edge.
    """
    message, _, outer, inner = work
    exact = sum_dtype(result_dtype(left, right))

    def gathered(value: Tensor, side: Side) -> Tensor:
        return spread(value.index_select(0, where[side.target]).to(exact), side.layout, outer, inner)

    other = None if right is None or message.right is None else gathered(right, message.right)
    found = joined(message.join, gathered(left, message.left), other)
    if winner is None:
        return found
    return found * (winner.index_select(0, where[message.left.target]) == where["e"][:, None])


def sddmm_plain(
    left: Tensor, right: Tensor | None, winner: Tensor | None, source: Tensor, destination: Tensor, work: Work
) -> Tensor:
    """Compute g-SDDMM chunk by chunk: :func:`loadmaster.executor.graph.kernels.operators.sddmm_op`."""
    _, reduce, outer, inner = work
    count, columns = source.numel(), outer if reduce == "inner" else outer * inner
    result = torch.empty((count, columns), dtype=result_dtype(left, right), device=source.device)
    step = max(1, CHUNK_NUMBERS // max(1, outer * inner))
    for start in range(0, count, step):
        stop = min(start + step, count)
        ids = torch.arange(start, stop, device=source.device)
        found = edge_messages(
            work, left, right, winner, {"u": source[start:stop], "v": destination[start:stop], "e": ids}
        )
        result[start:stop] = found.view(-1, outer, inner).sum(2) if reduce == "inner" else found
    return result


def spmm_plain(
    left: Tensor,
    right: Tensor | None,
    winner: Tensor | None,
    ptr: Tensor,
    neighbour: Tensor,
    edge: Tensor | None,
    work: Work,
) -> tuple[Tensor, Tensor]:
    """Compute g-SpMM chunk by chunk: :func:`loadmaster.executor.graph.kernels.operators.spmm_op`."""
    message, reduce, outer, inner = work
    rows, count = ptr.numel() - 1, neighbour.numel()
    numbers = outer * inner
    dtype = result_dtype(left, right)
    exact = sum_dtype(dtype)
    degree = ptr.diff()
    if winner is None and reduce in ("sum", "mean") and dtype == exact and _is_weighted_sum(message, left, right):
        total = _weighted_sum(left.to(dtype), right, ptr, neighbour, edge)
        return _averaged(total, degree, reduce), neighbour.new_empty(0)
    row_of = torch.arange(rows, device=ptr.device).repeat_interleave(degree, output_size=count)
    step = max(1, CHUNK_NUMBERS // max(1, numbers))

    def messages() -> Iterator[Part]:
        for start in range(0, count, step):
            stop = min(start + step, count)
            row = row_of[start:stop]
            id_ = torch.arange(start, stop, device=ptr.device) if edge is None else edge[start:stop].long()
            where: dict[Target, Tensor] = {"u": neighbour[start:stop], "v": row, "e": id_}
            yield row, id_, edge_messages(work, left, right, winner, where)

    if reduce in ("sum", "mean"):
        total = torch.zeros(rows, numbers, dtype=exact, device=ptr.device)
        for row, _, found in messages():
            total.index_add_(0, row, found)
        return _averaged(total, degree, reduce).to(dtype), neighbour.new_empty(0)
    if reduce == "logsumexp":
        return _logsumexp(messages, rows, numbers, exact, degree).to(dtype), neighbour.new_empty(0)
    best = torch.full((rows, numbers), -torch.inf if reduce == "max" else torch.inf, dtype=exact, device=ptr.device)
    for row, _, found in messages():
        best.scatter_reduce_(0, row[:, None].expand_as(found), found, "amax" if reduce == "max" else "amin")
    arg = torch.full((rows, numbers), count, dtype=torch.int64, device=ptr.device)
    for row, id_, found in messages():
        chosen = best.index_select(0, row)
        wins = (found == chosen) | (found.isnan() & chosen.isnan())
        ids = torch.where(wins, id_[:, None], count)
        arg.scatter_reduce_(0, row[:, None].expand_as(ids), ids, "amin")
    best.masked_fill_(degree[:, None] == 0, 0)
    arg.masked_fill_(arg == count, -1)
    return best.to(dtype), arg.to(neighbour.dtype)


def _averaged(total: Tensor, degree: Tensor, reduce: str) -> Tensor:
    return total.div_(degree.clamp(min=1)[:, None]) if reduce == "mean" else total


def _is_weighted_sum(message: Message, left: Tensor, right: Tensor | None) -> bool:
    """Return whether messages are rows of u, each times one number of the edge at most."""
    if message.left != ("u", "full") or left.numel() == 0:
        return False
    if right is None or message.right is None:
        return True
    return message.join == "mul" and message.right.target == "e" and right.shape[1] == 1


def _weighted_sum(left: Tensor, right: Tensor | None, ptr: Tensor, neighbour: Tensor, edge: Tensor | None) -> Tensor:
    """Sum weighted rows by ``embedding_bag``, for which PyTorch has a fast loop."""
    weights = None
    if right is not None:
        weights = (right if edge is None else right.index_select(0, edge)).view(-1).to(left.dtype)
    return functional.embedding_bag(
        neighbour, left, ptr, mode="sum", per_sample_weights=weights, include_last_offset=True
    )


def _logsumexp(
    messages: Callable[[], Iterator[Part]], rows: int, numbers: int, exact: torch.dtype, degree: Tensor
) -> Tensor:
    top = torch.full((rows, numbers), -torch.inf, dtype=exact, device=degree.device)
    for row, _, found in messages():
        top.scatter_reduce_(0, row[:, None].expand_as(found), found, "amax")
    top.masked_fill_(top.isinf(), 0)
    total = torch.zeros_like(top)
    for row, _, found in messages():
        total.index_add_(0, row, (found - top.index_select(0, row)).exp())
    return (top + total.log()).masked_fill_(degree[:, None] == 0, 0)
