"""Configurations of an index: its structure and the parameters of that structure.

Notation of [Shah23], section 6.2: Msi and Msh of a gapped array; mf-size, Mnf and nf of a fragmented log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from loadmaster.errors import InputError
from loadmaster.models.fields import Bounds

LEAST_FRAGMENT_KEYS, MOST_FRAGMENT_KEYS = 4, 4096
MOST_FRAGMENTS = 1 << 20

_Average = Annotated[float, Bounds(gt=0, le=1e6)]
_Fragments = Annotated[int, Bounds(ge=1, le=MOST_FRAGMENTS)]


@dataclass(frozen=True)
class GappedArray:
    """Sorted keys with gaps between them, each near where a linear model expects it: fast to read. Raises InputError
    for a parameter that is out of its range.

    Attributes:
        most_searches: Msi, iterations of an exponential search on average before a leaf is changed; None: what the cost
            model of ALEX expects.
        most_shifts: Msh, keys shifted by an insert on average before a leaf is changed; None: as above.
        insert_share: of operations that the cost model expects to be inserts, 0 to 1.
    """

    ordered: ClassVar = True
    writable: ClassVar = True

    most_searches: _Average | None = None
    most_shifts: _Average | None = None
    insert_share: Annotated[float, Bounds(ge=0, le=1)] = 0.5
    structure: Literal["gapped-array"] = "gapped-array"

    def __post_init__(self) -> None:
        for name, value in (("most_searches", self.most_searches), ("most_shifts", self.most_shifts)):
            if value is not None and not 0 < value <= 1e6:
                raise InputError(name, value, "is no average to keep to", "Give a number above 0, to 1e6, or None.")
        if not 0 <= self.insert_share <= 1:
            raise InputError("insert_share", self.insert_share, "is no share", "Give a number from 0 to 1.")


@dataclass(frozen=True)
class FragmentedLog:
    """Short unsorted runs of keys in a sorted row, found by a linear model: fast to write. Raises InputError for a
    parameter that is out of its range.

    Attributes:
        fragment_keys: mf-size, the most keys of a fragment.
        most_fragments: Mnf, the most fragments of a leaf.
        first_fragments: nf, the fragments of a new leaf.
    """

    ordered: ClassVar = True
    writable: ClassVar = True

    fragment_keys: Annotated[int, Bounds(ge=LEAST_FRAGMENT_KEYS, le=MOST_FRAGMENT_KEYS)] = 64
    most_fragments: _Fragments = 256
    first_fragments: _Fragments = 16
    structure: Literal["fragmented-log"] = "fragmented-log"

    def __post_init__(self) -> None:
        if not LEAST_FRAGMENT_KEYS <= self.fragment_keys <= MOST_FRAGMENT_KEYS:
            remedy = f"Give {LEAST_FRAGMENT_KEYS} to {MOST_FRAGMENT_KEYS}."
            raise InputError("fragment_keys", self.fragment_keys, "is no size of a fragment", remedy)
        if not 1 <= self.most_fragments <= MOST_FRAGMENTS:
            remedy = f"Give 1 to {MOST_FRAGMENTS}."
            raise InputError("most_fragments", self.most_fragments, "is no number of fragments", remedy)
        if not 1 <= self.first_fragments <= self.most_fragments:
            remedy = f"Give 1 to most_fragments, which is {self.most_fragments}."
            raise InputError("first_fragments", self.first_fragments, "is no number of first fragments", remedy)


@dataclass(frozen=True)
class SortedArray:
    """Keys in order without gaps: the smallest, for what is only read."""

    ordered: ClassVar = True
    writable: ClassVar = False

    structure: Literal["sorted-array"] = "sorted-array"


@dataclass(frozen=True)
class HashTable:
    """Keys in no order: the fastest where no ranges are asked for."""

    ordered: ClassVar = False
    writable: ClassVar = True

    structure: Literal["hash-table"] = "hash-table"


Configuration = GappedArray | FragmentedLog | SortedArray | HashTable
