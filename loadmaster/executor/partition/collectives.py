"""Collectives on one row of elements, as operators that a graph can hold.

Each is one operator, begun and waited for. Each is also two: ``begin_...``, whose result may be read through
``wait_for`` only. PyTorch's own pairs are not used: Inductor of 2.13 has read a result before it was waited for (seen
with ``reduce_scatter_tensor`` and an elementwise reader, on CPUs), and so it has where waiting is stated as a write.
What ``wait_for`` returns is another name of the result, so that every reader comes after it. ``after`` is what must
be there before, most often what another collective began: all ranks begin them in one order, whatever a compiler makes
of their own shares. What moves is kept by the collective until it is waited for. On a GPU, waiting stops the stream,
not the process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_ops = torch.ops._c10d_functional
_library = torch.library.Library("loadmaster", "FRAGMENT")  # type: ignore[no-untyped-call]


def in_a_row(tensor: Tensor) -> Tensor:
    """The elements in one row: collectives over the first dimension want one, and a compiler lays out a row one way."""
    return tensor.contiguous().view(-1)


def _begin_all_reduce(row: Tensor, group: str, after: Tensor | None = None) -> Tensor:
    found: Tensor = _ops.all_reduce(row, "sum", group)
    return found


def _begin_all_gather(row: Tensor, most: int, size: int, group: str, after: Tensor | None = None) -> Tensor:
    row = row if row.numel() == most else torch.nn.functional.pad(row, (0, most - row.numel()))
    found: Tensor = _ops.all_gather_into_tensor(row, size, group)
    return found


def _begin_reduce_scatter(row: Tensor, size: int, group: str, after: Tensor | None = None) -> Tensor:
    found: Tensor = _ops.reduce_scatter_tensor(row, "sum", size, group)
    return found


def _begin_all_to_all(
    row: Tensor, received: list[int], sent: list[int], group: str, after: Tensor | None = None
) -> Tensor:
    found: Tensor = _ops.all_to_all_single(row, received, sent, group)
    return found


def _waited(begun: Tensor) -> Tensor:
    found: Tensor = _ops.wait_tensor(begun)
    return found


def _operator(name: str, takes: str, run: Callable[..., Tensor], fake: Callable[..., Tensor]) -> Any:
    """An operator of this name. Nothing is differentiated through it, so that a call costs little."""
    _library.define(f"{name}({takes}) -> Tensor")  # type: ignore[no-untyped-call]
    torch.library.impl(f"loadmaster::{name}", "default", run, lib=_library)
    torch.library.register_fake(f"loadmaster::{name}", fake, lib=_library)
    return getattr(torch.ops.loadmaster, name).default


def _pair(name: str, takes: str, begin: Callable[..., Tensor], elements: Callable[..., int]) -> tuple[Any, Any]:
    """A collective as one operator, and the operator that begins it."""

    def fake(row: Tensor, *rest: Any) -> Tensor:
        return row.new_empty(elements(row.numel(), *rest))

    takes = f"{takes}, Tensor? after=None"
    whole = _operator(name, takes, lambda *given: _waited(begin(*given)), fake)
    return whole, _operator(f"begin_{name}", takes, begin, fake)


all_reduce, _first = _pair("all_reduce", "Tensor row, str group", _begin_all_reduce, lambda count, *_: count)
"""(row, group): the sum over a group."""
all_gather, _second = _pair(
    "all_gather",
    "Tensor row, int most, int size, str group",
    _begin_all_gather,
    lambda count, most, size, *_: most * size,
)
"""(row, most, size, group): the rows of a group of that size, one after the other, each filled up to the most elements
that one has."""
reduce_scatter, _third = _pair(
    "reduce_scatter",
    "Tensor row, int size, str group",
    _begin_reduce_scatter,
    lambda count, size, *_: count // size,
)
"""(row, size, group): this rank's share of the sum over a group of that size."""
all_to_all, _fourth = _pair(
    "all_to_all",
    "Tensor row, int[] received, int[] sent, str group",
    _begin_all_to_all,
    lambda count, received, *_: sum(received),
)
"""(row, received, sent, group): so many elements from each rank of a group, one share after the other, for so many to
each."""

BEGUN: dict[Any, Any] = {all_reduce: _first, all_gather: _second, reduce_scatter: _third, all_to_all: _fourth}
"""Each collective's operator -> the one that begins it."""

_library.define("wait_for(Tensor(a) begun) -> Tensor(a)")  # type: ignore[no-untyped-call]
torch.library.impl("loadmaster::wait_for", "default", _waited, lib=_library)
torch.library.register_fake("loadmaster::wait_for", lambda begun: begun.view(-1), lib=_library)
wait_for = torch.ops.loadmaster.wait_for.default
"""What was begun, when it is there."""
