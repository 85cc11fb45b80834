"""The product of each node's messages, chunk by chunk: messages of a chunk are made again when gradients flow."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from loadmaster.executor.graph.kernels.spmm_messages import Message, joined, result_dtype, spread, sum_dtype
from loadmaster.executor.graph.kernels.spmm_plain import CHUNK_NUMBERS
from loadmaster.executor.graph.structure.adjacency import Adjacency


def product(
    adjacency: Adjacency, left: Tensor, right: Tensor | None, message: Message, outer: int, inner: int
) -> Tensor:
    """Product of each destination's messages: [destinations, outer * inner]; zero where there are none.

    Gradients are right at zeros too. A row longer than a chunk is a chunk of its own. Waits for the device.
    """
    dtype = result_dtype(left, right)
    exact = sum_dtype(dtype)
    csc = adjacency.csc()
    ptr = csc.ptr.long()
    edge = csc.edge_ids()

    def chunk(left: Tensor, right: Tensor | None, first: int, last: int) -> Tensor:
        offsets = ptr[first : last + 1]
        begin, end = int(offsets[0]), int(offsets[-1])
        rows = torch.arange(first, last, device=ptr.device).repeat_interleave(offsets.diff(), output_size=end - begin)
        where = {"u": csc.neighbour[begin:end], "v": rows, "e": edge[begin:end]}
        gathered = [
            spread(value.index_select(0, where[side.target]).to(exact), side.layout, outer, inner)
            for value, side in ((left, message.left), (right, message.right))
            if value is not None and side is not None
        ]
        messages = joined(message.join, gathered[0], gathered[1] if len(gathered) > 1 else None)
        return torch.segment_reduce(messages.contiguous(), "prod", offsets=offsets - begin, axis=0, unsafe=True)

    parts = []
    step = max(1, CHUNK_NUMBERS // max(1, outer * inner))
    count = adjacency.destination_count
    first = 0
    while first < count:
        bound = ptr[first] + step
        last = min(count, max(first + 1, int(torch.searchsorted(ptr, bound, right=True)) - 1))
        parts.append(checkpoint(chunk, left, right, first, last, use_reentrant=False))
        first = last
    if not parts:
        return left.new_zeros((0, outer * inner), dtype=dtype)
    whole = torch.cat(parts).to(dtype)
    return whole.masked_fill((ptr.diff() == 0)[:, None], 0)
