"""Data of nodes and edges: named tensors with a row for each, and what a message pass works on."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import NamedTuple

import torch
from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.graph.structure.adjacency import Adjacency, MapTensor


class Frame(MutableMapping[str, Tensor]):
    """Named tensors that all have ``rows`` rows and one device."""

    def __init__(self, what: str, rows: int, device: torch.device) -> None:
        self.what = what
        self.rows = rows
        self.device = device
        self.columns: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        try:
            return self.columns[name]
        except KeyError:
            known = ", ".join(self.columns) or "nothing"
            remedy = f"Set it first; there is {known}."
            raise InputError(f"{self.what}[{name!r}]", name, "is not there", remedy) from None

    def __setitem__(self, name: str, value: Tensor) -> None:
        self.expect_rows(name, value)
        self.columns[name] = value

    def expect_rows(self, name: str, value: Tensor) -> None:
        """Refuse a column that does not have a row for each node or edge.

        Raises:
            InputError: naming rows or device.
        """
        field = f"{self.what}[{name!r}]"
        if not isinstance(value, Tensor):
            raise InputError(field, type(value).__name__, "is no tensor", "Give a tensor with a row for each.")
        if value.dim() == 0 or value.shape[0] != self.rows:
            remedy = f"Give a tensor of {self.rows} rows."
            raise InputError(field, tuple(value.shape), "has another number of rows", remedy)
        if value.device != self.device:
            remedy = "Move it, or the graph with graph.to(device)."
            raise InputError(field, str(value.device), f"is not on the graph's device, {self.device}", remedy)

    def __delitem__(self, name: str) -> None:
        self[name]
        del self.columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def __repr__(self) -> str:
        shown = {name: tuple(value.shape) for name, value in self.columns.items()}
        return f"{self.what} of {self.rows} rows: {shown}"

    def write_rows(self, name: str, rows: Tensor, values: Tensor) -> None:
        """Make a new column: ``values`` in these rows, in the others what the old column has, or zero."""
        old = self.columns.get(name)
        fits = old is not None and old.shape[1:] == values.shape[1:]
        base = old if old is not None and fits else values.new_zeros((self.rows, *values.shape[1:]))
        self.columns[name] = base.to(values.dtype).index_copy(0, rows.long(), values)

    def mapped(self, each: MapTensor, rows: int, device: torch.device) -> Frame:
        """A frame of what ``each`` makes of every column."""
        made = Frame(self.what, rows, device)
        made.columns = {name: each(value) for name, value in self.columns.items()}
        return made

    def selected(self, rows: Tensor) -> Frame:
        """A frame of these rows only; gradients flow back."""
        return self.mapped(lambda value: value.index_select(0, rows), rows.numel(), self.device)


class RelationEnds(NamedTuple):
    """The edges of one relation with the data at both ends and on the edges: what a message pass works on."""

    adjacency: Adjacency
    source: Frame
    destination: Frame
    edge: Frame
