"""Data of nodes and edges: named tensors with a row for each, what a message pass works on, and views of a graph.

Views are ``graph.nodes["paper"].data["h"]`` and ``graph.ndata["h"]``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.graph.structure.adjacency import Adjacency
from loadmaster.executor.graph.structure.schema import RelationKey, Triple


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
        """Refuse a column that does not have a row for each node or edge."""
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

    def selected(self, rows: Tensor) -> Frame:
        """A frame of these rows only; gradients flow back."""
        made = Frame(self.what, rows.numel(), self.device)
        made.columns = {name: value.index_select(0, rows) for name, value in self.columns.items()}
        return made


class RelationEnds(NamedTuple):
    """The edges of one relation with the data at both ends and on the edges: what a message pass works on."""

    adjacency: Adjacency
    source: Frame
    destination: Frame
    edge: Frame


class WithData(NamedTuple):
    """Nodes of a type, or edges of a relation."""

    data: Frame


@dataclass(eq=False, repr=False)
class Nodes:
    """View ``graph.nodes``: called with a type, the ids of its nodes; indexed by it, ``.data`` is their data."""

    _frames: tuple[Frame, ...]
    _index: Callable[[str | None], int]
    _dtype: torch.dtype

    def __getitem__(self, node_type: str | None) -> WithData:
        return WithData(self._frames[self._index(node_type)])

    def __call__(self, node_type: str | None = None) -> Tensor:
        frame = self._frames[self._index(node_type)]
        return torch.arange(frame.rows, dtype=self._dtype, device=frame.device)


@dataclass(eq=False, repr=False)
class Edges:
    """View ``graph.edges``: called with a relation, its edges' ends; indexed by it, ``.data`` is their data."""

    _frames: tuple[Frame, ...]
    _index: Callable[[RelationKey | None], int]
    _adjacency: Callable[[int], Adjacency]

    def __getitem__(self, relation: RelationKey | None) -> WithData:
        return WithData(self._frames[self._index(relation)])

    def __call__(self, relation: RelationKey | None = None) -> tuple[Tensor, Tensor]:
        adjacency = self._adjacency(self._index(relation))
        return adjacency.source, adjacency.destination


class ColumnsByType(MutableMapping[str, Mapping[str | Triple, Tensor]]):
    """View ``graph.ndata`` or ``graph.edata`` of several types: a name's tensors, by type or relation."""

    def __init__(self, keys: tuple[str, ...] | tuple[Triple, ...], frames: tuple[Frame, ...]) -> None:
        self._by_key: dict[str | Triple, Frame] = dict(zip(keys, frames, strict=True))

    def __getitem__(self, name: str) -> dict[str | Triple, Tensor]:
        found = {key: frame[name] for key, frame in self._by_key.items() if name in frame}
        if not found:
            raise InputError("data", name, "is set on no type", "Set it first, as {type: tensor}.")
        return found

    def __setitem__(self, name: str, values: Mapping[str | Triple, Tensor]) -> None:
        if not isinstance(values, Mapping):
            raise InputError(name, type(values).__name__, "does not say of which type", "Give {type: tensor}.")
        unknown = [key for key in values if key not in self._by_key]
        if unknown:
            remedy = f"Use one of: {', '.join(map(str, self._by_key))}."
            raise InputError(name, unknown[0], "is no type of this graph", remedy)
        for key, value in values.items():
            self._by_key[key][name] = value

    def __delitem__(self, name: str) -> None:
        for key in self[name]:
            del self._by_key[key][name]

    def __iter__(self) -> Iterator[str]:
        return iter({name: None for frame in self._by_key.values() for name in frame})

    def __len__(self) -> int:
        return len(list(iter(self)))
