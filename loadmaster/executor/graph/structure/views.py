"""Views of nodes, edges and their data: ``graph.nodes["paper"].data["h"]``, ``graph.ndata["h"]``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import NamedTuple

import torch
from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.graph.structure.frames import Frame
from loadmaster.executor.graph.structure.schema import RelationKey, Triple


class WithData(NamedTuple):
    """Nodes of a type, or edges of a relation."""

    data: Frame


class Nodes:
    """View ``graph.nodes``: called with a type, the ids of its nodes; indexed by it, ``.data`` is their data."""

    def __init__(self, frames: tuple[Frame, ...], index: Callable[[str | None], int], dtype: torch.dtype) -> None:
        self._frames = frames
        self._index = index
        self._dtype = dtype

    def __getitem__(self, node_type: str | None) -> WithData:
        return WithData(self._frames[self._index(node_type)])

    def __call__(self, node_type: str | None = None) -> Tensor:
        frame = self._frames[self._index(node_type)]
        return torch.arange(frame.rows, dtype=self._dtype, device=frame.device)


class Edges:
    """View ``graph.edges``: called with a relation, its edges' ends; indexed by it, ``.data`` is their data."""

    def __init__(
        self,
        frames: tuple[Frame, ...],
        index: Callable[[RelationKey | None], int],
        ends: Callable[[int], tuple[Tensor, Tensor]],
    ) -> None:
        self._frames = frames
        self._index = index
        self._ends = ends

    def __getitem__(self, relation: RelationKey | None) -> WithData:
        return WithData(self._frames[self._index(relation)])

    def __call__(self, relation: RelationKey | None = None) -> tuple[Tensor, Tensor]:
        return self._ends(self._index(relation))


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
