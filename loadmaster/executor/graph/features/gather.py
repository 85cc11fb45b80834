"""Operators that gather rows of host tables for a device; they read unified tensors and hot rows.

They are operators of PyTorch, so that dispatch modes and compilers see one call. The result is on the index's device.
On the host they are PyTorch's own indexing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.graph.features.canaries import by_kernel, by_processor, gather_kernel
from loadmaster.executor.graph.features.host_memory import expect_readable
from loadmaster.executor.steps.operators import operator

INDEX_DTYPES = (torch.int64, torch.int32)


def _gather_rows(table: Tensor, index: Tensor, in_place: bool = True) -> Tensor:
    """Gather rows of a table in host memory, to the device of the index: [n, ...].

    Args:
        table: [rows, ...], in memory that the CUDA device reads where the index is on one; each row contiguous.
        index: int32 or int64 [n]; negative rows count from the end. A CUDA device that reads in place takes zeros for a
            row that the table does not have: :func:`expect_in_range` says whether there are any.
        in_place: whether a CUDA device reads the rows itself, or the processor gathers and sends them.

    Raises:
        InputError: the device cannot read the table, the index names no rows, or a row out of range where the processor
            gathers.
    """
    expect_gather(table, index)
    if not index.is_cuda:
        expect_in_range(index, table.shape[0])
        return table[index]
    if not in_place:
        here = index.cpu()
        expect_in_range(here, table.shape[0])
        return by_processor(table, here, index.device)
    expect_readable(table, index.device)
    return by_kernel(table, index.contiguous())


def _gather_hot_rows(
    table: Tensor, rows: Tensor, slots: Tensor, counts: Tensor, index: Tensor, in_place: bool = True
) -> Tensor:
    """Gather rows [n, ...] of a host table, some of them kept on the index's device: one kernel reads both.

    Args:
        table, index, in_place: as for :func:`gather_rows`; so are errors.
        rows: [hot, ...] on the device of the index.
        slots: int32 [rows of the table] on that device: where in ``rows`` a row is, or -1.
        counts: int64 [2] on that device: how many rows were found in ``rows``, and how many were read, are added.
    """
    expect_gather(table, index)
    if index.is_cuda and in_place:
        expect_readable(table, index.device)
        result = rows.new_empty((index.shape[0], *table.shape[1:]))
        gather_kernel().gather(table, index.contiguous(), result, (rows, slots, counts))
        return result
    expect_in_range(index, table.shape[0])
    slot = slots[index]
    hot = slot >= 0
    counts += torch.stack([hot.sum(), hot.new_full((), index.numel(), dtype=torch.int64)])
    result = rows.new_empty((index.shape[0], *table.shape[1:]))
    result[hot] = rows[slot[hot]]
    cold = index[~hot]
    result[~hot] = by_processor(table, cold.cpu(), index.device) if index.is_cuda else table[cold]
    return result


gather_rows = operator(
    "gather_rows(Tensor table, Tensor index, bool in_place=True) -> Tensor",
    _gather_rows,
    lambda table, index, in_place=True: table.new_empty((index.shape[0], *table.shape[1:]), device=index.device),
)
gather_hot_rows = operator(
    "gather_hot_rows(Tensor table, Tensor rows, Tensor slots, Tensor(a!) counts, Tensor index, bool in_place=True)"
    " -> Tensor",
    _gather_hot_rows,
    lambda table, rows, slots, counts, index, in_place=True: rows.new_empty((index.shape[0], *table.shape[1:])),
)


def expect_gather(table: Tensor, index: Tensor) -> None:
    """Refuse an index that does not name rows, and a table without rows to gather."""
    if index.dtype not in INDEX_DTYPES or index.dim() != 1:
        remedy = "Give one dimension of int64 or int32."
        raise InputError("index", f"{index.dtype} {list(index.shape)}", "does not name rows", remedy)
    if table.dim() < 1 or not rows_are_contiguous(table):
        problem = "has no rows that lie in one piece"
        remedy = "Give a table whose dimensions behind the first are contiguous."
        raise InputError("table", f"shape {list(table.shape)}, strides {list(table.stride())}", problem, remedy)


def rows_are_contiguous(table: Tensor) -> bool:
    """Return whether each row is contiguous in memory as it is read, however far the next one is."""
    if table.is_conj() or table.is_neg():
        return False  # what is stored is another number
    expected = 1
    for size, stride in zip(reversed(table.shape[1:]), reversed(table.stride()[1:]), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return table.stride(0) >= 0


def expect_in_range(index: Tensor, rows: int) -> None:
    """Refuse rows that a table does not have. On a CUDA device this waits for the index."""
    if not index.numel():
        return
    least, most = (int(i) for i in torch.stack(torch.aminmax(index)).tolist())
    if least < -rows or most >= rows:
        remedy = "Give rows of the table; ids of a part of the graph must be turned into those of the whole first."
        raise InputError("index", f"{least} to {most}", f"names rows that a table of {rows} rows does not have", remedy)


def expect_nodes(name: str, nodes: Tensor, node_count: int) -> None:
    """Refuse what does not name nodes of a graph: int64 or int32, counted from 0."""
    if nodes.dtype not in INDEX_DTYPES:
        raise InputError(name, str(nodes.dtype), "does not name nodes", "Give int64 or int32.")
    if not nodes.numel():
        return
    least, most = (int(i) for i in torch.stack(torch.aminmax(nodes)).tolist())
    if least < 0 or most >= node_count:
        problem = f"names nodes that a graph of {node_count} nodes does not have"
        raise InputError(name, f"{least} to {most}", problem, f"Give ids from 0 to {node_count - 1}.")
