"""Adding up what arrives: in the global order of messages, in fp32 where the type is narrower, rounded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from loadmaster.executor.collective.exchange import Memory, view
from loadmaster.executor.collective.staging import Arrival, Piece, Staged, Step

OPERATORS: dict[object, Callable[..., torch.Tensor]] = {
    dist.ReduceOp.SUM: torch.add,
    dist.ReduceOp.AVG: torch.add,
    dist.ReduceOp.PRODUCT: torch.mul,
    dist.ReduceOp.MIN: torch.minimum,
    dist.ReduceOp.MAX: torch.maximum,
}
_NARROW = (torch.bfloat16, torch.float16)
_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_COMPLEX = (torch.complex64, torch.complex128)
_REAL = (*_NARROW, torch.float32, torch.float64)


def kind_of(op: object) -> object:
    """Return the operator itself, of a ReduceOp or of one of its names."""
    return getattr(op, "op", op)


def averages(op: object) -> bool:
    """Return whether sums are divided by the number of ranks at the end."""
    return kind_of(op) == dist.ReduceOp.AVG


def can_combine(op: object, dtype: torch.dtype) -> bool:
    """Return whether a plan adds up values of that type by that operator."""
    kind = kind_of(op)
    if kind in (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT):
        return dtype in (*_REAL, *_WHOLE, *_COMPLEX)
    if kind == dist.ReduceOp.AVG:
        return dtype in (*_REAL, *_COMPLEX)
    return kind in OPERATORS and dtype in (*_REAL, *_WHOLE)


class Sums:
    """The sums under way on one rank in one call."""

    def __init__(self, memory: Memory, dtype: torch.dtype, op: object) -> None:
        self.memory, self.dtype = memory, dtype
        self.wide = torch.float32 if dtype in _NARROW else dtype
        self.operator = OPERATORS.get(kind_of(op), torch.add)
        self.open: dict[int, torch.Tensor] = {}

    def add(self, step: Step, landed: Sequence[torch.Tensor]) -> None:
        """Copy or add up the staged messages of a batch that is over."""
        for arrival in step.arrivals:
            came = landed[arrival.incoming][arrival.offset : arrival.offset + arrival.size_bytes]
            if not arrival.combines:
                assert arrival.result is not None
                copy(view(self.memory, arrival.result), came)
            else:
                self._combine(arrival, came.view(self.dtype))

    def _combine(self, arrival: Arrival, came: torch.Tensor) -> None:
        own = None if arrival.own is None else self._values(arrival.own)
        if own is not None and arrival.result is not None:
            # The only part to come: the operator itself works in fp32 and rounds once.
            self.operator(own, came, out=self._values(arrival.result))
            return
        if own is not None:
            total = self.operator(own.to(self.wide), came)
        elif arrival.chunk in self.open:
            total = self.operator(self.open[arrival.chunk], came)
        else:
            total = came.to(self.wide)
        self.open[arrival.chunk] = total
        if arrival.result is not None:
            self._values(arrival.result).copy_(self.open.pop(arrival.chunk))

    def total(self, home: Piece, pieces: Sequence[Piece]) -> None:
        """Add up pieces in their order, and write the total to its place."""
        total = self._values(pieces[0]).to(self.wide)
        for piece in pieces[1:]:
            total = self.operator(total, self._values(piece))
        self._values(home).copy_(total)

    def _values(self, piece: Piece) -> torch.Tensor:
        return view(self.memory, piece).view(self.dtype)


def bytes_of(tensor: torch.Tensor | None) -> int:
    """Bytes of a tensor; zero where there is none."""
    return 0 if tensor is None else tensor.numel() * tensor.element_size()


def flat(tensor: torch.Tensor | None, device: torch.device) -> torch.Tensor:
    """View a contiguous tensor as bytes; empty where there is none."""
    if tensor is None or not tensor.numel():
        return torch.empty(0, dtype=torch.uint8, device=device)
    return tensor.detach().view(-1).view(torch.uint8)


def copy(home: torch.Tensor, origin: torch.Tensor) -> None:
    """Copy bytes, unless they are there already."""
    if home.data_ptr() != origin.data_ptr():
        home.copy_(origin)


def in_the_way(staged: Staged, memory: Memory) -> bool:
    """Return whether the output overlaps a part of the input that is another chunk's, and would spoil it."""
    shift = memory["output"].data_ptr() - memory["input"].data_ptr()
    input_bytes = memory["input"].numel()
    for offset, size_bytes, origin in staged.origins:
        over = offset + shift
        if over < input_bytes and over + size_bytes > 0 and over != origin:
            return True
    return False
