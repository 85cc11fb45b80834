"""Types of nodes and relations of a graph: names, counts, where each type's rows begin; ids of nodes and edges."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loadmaster.errors import InputError

Triple = tuple[str, str, str]
RelationKey = str | int | Triple
NODE, EDGE = "_N", "_E"  # the names of the only type where a user gives none, as in DGL
INT32_IDS = 2**31 - 1  # ids beyond need 64 bits
ID_DTYPES = (torch.int32, torch.int64)


def id_tensor(field: str, value: Any, device: torch.device | str | None = None) -> Tensor:
    """One-dimensional integer ids from a tensor, an array or a list."""
    try:
        ids = value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
    except (TypeError, ValueError, RuntimeError):
        raise InputError(field, value, "are no ids", "Give a tensor, an array or a list of integers.") from None
    if ids.numel() == 0 and ids.dim() == 1:
        ids = ids.to(torch.int64) if ids.is_floating_point() else ids
    if ids.dim() != 1 or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        found = f"{ids.dtype} {list(ids.shape)}"
        raise InputError(field, found, "are no ids", "Give one-dimensional int32 or int64 ids.")
    return ids if device is None else ids.to(device)


def choose_dtype(wanted: torch.dtype | None, largest: int) -> torch.dtype:
    """Dtype of ids up to ``largest``: int32 where they fit, or what is wanted. InputError: int32 is wanted and too
    small, or what is wanted is neither int32 nor int64."""
    if wanted is None:
        return torch.int32 if largest <= INT32_IDS else torch.int64
    if wanted not in ID_DTYPES:
        raise InputError("id_dtype", wanted, "holds no ids", "Give torch.int32 or torch.int64.")
    if wanted == torch.int32 and largest > INT32_IDS:
        raise InputError("id_dtype", wanted, f"is too small for {largest} nodes or edges", "Give torch.int64.")
    return wanted


def expect_within(field: str, ids: Tensor, count: int, what: str = "node") -> None:
    """Refuse ids that name nothing. Waits for the device."""
    if ids.numel() == 0:
        return
    low, high = (int(x) for x in torch.aminmax(ids))
    if low < 0 or high >= count:
        found = low if low < 0 else high
        remedy = f"Use ids from 0 to {count - 1}." if count else f"There is no {what}."
        raise InputError(field, found, f"names no {what}", remedy)


@dataclass(frozen=True)
class Schema:
    """Types of nodes and relations. Nodes of all types are numbered consecutively, type by type.

    Attributes:
        source_counts: nodes of each type that edges may begin at.
        destination_counts: those that edges may end at; the same, but in blocks the first of each type.
        relations: (source type, name, destination type) of each.
        source_offsets, destination_offsets: [types + 1], where each type's rows begin, and the sum.
    """

    node_types: tuple[str, ...]
    source_counts: tuple[int, ...]
    destination_counts: tuple[int, ...]
    relations: tuple[Triple, ...]
    source_offsets: tuple[int, ...] = field(init=False, repr=False)
    destination_offsets: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name, counts in (("source_offsets", self.source_counts), ("destination_offsets", self.destination_counts)):
            object.__setattr__(self, name, tuple(itertools.accumulate(counts, initial=0)))
        for what, count in zip(self.node_types, self.source_counts, strict=True):
            if not isinstance(count, int) or count < 0:
                raise InputError(f"node_counts[{what!r}]", count, "is no number of nodes", "Give a whole number >= 0.")
        for name, names in (("node_counts", self.node_types), ("relations", self.relations)):
            if len(set(names)) != len(names):
                raise InputError(name, names, "names something twice", "Give every type and relation one name.")
        for relation in self.relations:
            for end in (relation[0], relation[2]):
                if end not in self.node_types:
                    remedy = f"Use one of: {', '.join(self.node_types)}."
                    raise InputError("relations", relation, f"is of no type of node: {end!r}", remedy)

    @property
    def source_count(self) -> int:
        """Number of source nodes of all types."""
        return self.source_offsets[-1]

    @property
    def destination_count(self) -> int:
        """Number of destination nodes of all types."""
        return self.destination_offsets[-1]

    @property
    def one_type(self) -> bool:
        return len(self.node_types) == 1

    def node_type(self, name: str | None) -> int:
        """The index of a type of node; None is the only one. InputError: there is none, or None says too little."""
        if name is None and self.one_type:
            return 0
        if name not in self.node_types:
            raise InputError("node type", name, "is none of this graph's", f"Use one of: {', '.join(self.node_types)}.")
        return self.node_types.index(name)

    def relation(self, key: RelationKey | None) -> int:
        """The index of a relation by triple, by number, or by name if one alone has it; None is the only one.
        InputError: there is none, or several."""
        if key is None and len(self.relations) == 1:
            return 0
        if isinstance(key, int) and 0 <= key < len(self.relations):
            return key
        found = [i for i, triple in enumerate(self.relations) if key in (triple, triple[1])]
        if len(found) != 1:
            problem = "is the name of several relations" if found else "is no relation of this graph"
            shown = ", ".join(map(str, self.relations[:8]))
            raise InputError("relation", key, problem, f"Use one of: {shown}.")
        return found[0]

    def ends(self, relation: int) -> tuple[int, int]:
        """The types of node at both ends of a relation."""
        source, _, destination = self.relations[relation]
        return self.node_types.index(source), self.node_types.index(destination)


def as_triples(relations: Sequence[Triple]) -> tuple[Triple, ...]:
    """Check relations, and return them as they are given."""
    for relation in relations:
        if not isinstance(relation, tuple) or len(relation) != 3 or not all(isinstance(part, str) for part in relation):
            raise InputError("relations", relation, "is no relation", "Give (source type, name, destination type).")
    return tuple(relations)
