"""Collectives on rows of elements, as operators that a graph can hold.

Each is one operator on one row, begun and waited for. Each is also two on a list of rows, which move together:
``begin_...``, whose results may be read through ``wait_for`` only. PyTorch's own pairs are not used: Inductor of 2.13
may read a result before it is waited for (seen with ``reduce_scatter_tensor`` and an elementwise reader, on CPUs), also
where waiting is declared as a write. ``wait_for`` returns the same rows under other names, so that every reader comes
after it. ``after`` is a tensor that must exist before, most often what another collective began: all ranks begin them
in one order, whatever a compiler makes of their own shares. The collective keeps what it moves until it is waited for.
On a GPU, waiting stops the stream, not the process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from loadmaster.executor.steps.operators import operator
from loadmaster.executor.torch_private.operators import functional_collectives

_ops = functional_collectives


def in_a_row(tensor: Tensor) -> Tensor:
    """Elements of a tensor in one row: collectives over the first dimension want one, and it has only one layout."""
    return tensor.contiguous().view(-1)


def _begin_all_gather(
    rows: list[Tensor], most: list[int], size: int, group: str, after: Tensor | None = None
) -> list[Tensor]:
    filled = [
        row if row.numel() == count else torch.nn.functional.pad(row, (0, count - row.numel()))
        for row, count in zip(rows, most, strict=True)
    ]
    found: list[Tensor] = _ops.all_gather_into_tensor_coalesced(filled, size, group)
    return found


def _waited(begun: list[Tensor]) -> list[Tensor]:
    return [_ops.wait_tensor(row) for row in begun]


def _pair(
    name: str, own: Sequence[str], shared: str, begin: Callable[..., list[Tensor]], elements: Callable[..., int]
) -> tuple[Any, Any]:
    """Define a collective on one row as one operator, and the operator that begins it on several rows. Each row has its
    ``own`` arguments, the row first; the ``shared`` ones are the same for all. ``elements`` counts those of a result,
    from those of its row and the other arguments."""

    def begin_one(*given: Any) -> list[Tensor]:
        return begin(*([one] for one in given[: len(own)]), *given[len(own) :])

    def fake_begin(*given: Any) -> list[Tensor]:
        rows, rest = zip(*given[: len(own)], strict=True), given[len(own) :]
        return [row.new_empty(elements(row.numel(), *more, *rest)) for row, *more in rows]

    def fake(row: Tensor, *rest: Any) -> Tensor:
        return row.new_empty(elements(row.numel(), *rest))

    rest = f"{shared}, Tensor? after=None"
    several = ", ".join(one.replace(" ", "[] ") for one in own)
    whole = operator(f"{name}({', '.join(own)}, {rest}) -> Tensor", lambda *given: _waited(begin_one(*given))[0], fake)
    return whole, operator(f"begin_{name}({several}, {rest}) -> Tensor[]", begin, fake_begin)


all_reduce, _first = _pair(
    "all_reduce",
    ["Tensor row"],
    "str group",
    lambda rows, group, after=None: _ops.all_reduce_coalesced(rows, "sum", group),
    lambda count, *_: count,
)
"""Operator (row, group): the sum over a group."""
all_gather, _second = _pair(
    "all_gather",
    ["Tensor row", "int most"],
    "int size, str group",
    _begin_all_gather,
    lambda count, most, size, *_: most * size,
)
"""Operator (row, most, size, group): the rows of a group of that size, one after the other, each padded to ``most``
elements."""
reduce_scatter, _third = _pair(
    "reduce_scatter",
    ["Tensor row"],
    "int size, str group",
    lambda rows, size, group, after=None: _ops.reduce_scatter_tensor_coalesced(rows, "sum", size, group),
    lambda count, size, *_: count // size,
)
"""Operator (row, size, group): this rank's share of the sum over a group of that size."""
all_to_all, _fourth = _pair(
    "all_to_all",
    ["Tensor row"],
    "int[] received, int[] sent, str group",
    lambda rows, received, sent, group, after=None: [
        _ops.all_to_all_single(row, received, sent, group) for row in rows
    ],
    lambda count, received, *_: sum(received),
)
"""Operator (row, received, sent, group): exchange with each rank of a group the given numbers of elements."""

BEGUN: dict[Any, Any] = {all_reduce: _first, all_gather: _second, reduce_scatter: _third, all_to_all: _fourth}
"""Map from each collective's operator to the one that begins it."""
OWN_ARGUMENTS: dict[Any, int] = {all_reduce: 1, all_gather: 2, reduce_scatter: 1, all_to_all: 1}
"""Map from each collective's operator to its number of arguments, the first ones, that are lists for several rows."""

wait_for = operator(
    "wait_for(Tensor[] begun) -> Tensor[]", _waited, lambda begun: [torch.empty_like(row) for row in begun]
)
"""Operator that waits for rows that were begun, and returns them."""
