"""A call of an operator in letters, as ``einsum`` has them: ``mk,kn -> mn``. Most of ATen's operators need no more.

    ab     two dimensions that can be split, each by one index; one that is missing from a result is summed over there
    A      a dimension that is needed, or made, as a whole
    1      a dimension of one element

A formula stands for a description (:mod:`.language`) in which every result is a function of everything that its
indices name: ``bsH,H -> bsH`` is a function of rows, whatever it does with each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from loadmaster.errors import InputError
from loadmaster.models.partition.problem import Strategy
from loadmaster.models.partition.tdl.discovery import Extents, strategies
from loadmaster.models.partition.tdl.language import (
    Called,
    Description,
    Element,
    Expression,
    Index,
    OpaqueElement,
    Reduced,
    Result,
)

_ONE = "1"
Shape = Sequence[int]


@dataclass(frozen=True)
class Formula:
    """Tensors of one call in letters: its formula, and how to try it.

    Attributes:
        inputs, results: letters of the dimensions of each tensor, in order.
        told: for arguments that are told extents, the letters of those: a list of them, or a single one.
        products: told for an argument that is the product of these letters' extents.
        small: extents of whole dimensions that do for a trial; others are tried as they are.
        compared: so many of the results are what is computed; the others are states of random generators. None: all.
        own_formats: whether kernels take no float64, though they may not say so.
    """

    inputs: tuple[str, ...]
    results: tuple[str, ...]
    told: Mapping[str, str] = field(default_factory=dict)
    products: Mapping[str, str] = field(default_factory=dict)
    small: Mapping[str, int] = field(default_factory=dict)
    compared: int | None = None
    own_formats: bool = False

    @cached_property
    def description(self) -> Description:
        """The formula in the description language."""
        names = tuple(f"a{n}" for n in range(len(self.inputs)))
        return Description(names, tuple(map(self._result, self.results)))

    def _result(self, letters: str) -> Result:
        summed = tuple(dict.fromkeys(c for of in self.inputs for c in of if c.islower() and c not in letters))
        reads = tuple(Element(n, tuple(map(_index, of))) for n, of in enumerate(self.inputs))
        at = tuple(Index({c: 1.0}) for c in letters if c.isupper())
        element: Expression = Called("function", reads)
        if at or any(c.isupper() for of in self.inputs for c in of):
            element = OpaqueElement("function", reads, at)
        indices = tuple(c if c != _ONE else f"one{n}" for n, c in enumerate(letters))
        return Result(indices, Reduced("sum", summed, element) if summed else element)

    @cached_property
    def strategies(self) -> tuple[Strategy, ...]:
        """Strategies that need no terms of sums, as no tensor is stored so; each is named by the letter it splits."""
        told = frozenset(c for letters in (*self.told.values(), *self.products.values()) for c in letters)
        found = strategies(self.description, Extents(told=told))
        return tuple(s for s in found if not any(need.part == "P" for need in s.inputs))

    def extents(self, shapes: Sequence[Shape]) -> dict[str, int]:
        """Extent of every letter, by shapes of inputs and results; raises InputError where ranks or extents differ."""
        found: dict[str, int] = {}
        letters = (*self.inputs, *self.results)
        if [len(of) for of in letters] != [len(shape) for shape in shapes]:
            raise InputError("formula", str(self), f"is not for shapes {list(map(list, shapes))}", "Mend its rule.")
        for of, shape in zip(letters, shapes, strict=True):
            for letter, extent in zip(of, shape, strict=True):
                if found.setdefault(letter, extent) != extent or (letter == _ONE and extent != 1):
                    raise InputError("formula", str(self), f"has {letter} as {found[letter]} and {extent}", "Mend it.")
        return found

    def told_values(self, extents: Mapping[str, int], listed: Mapping[str, object]) -> dict[str, object]:
        """Arguments for these extents; an argument that is a list in the call (``listed``) stays one."""
        found: dict[str, object] = {}
        for name, letters in self.told.items():
            values = [extents[c] for c in letters]
            found[name] = values if isinstance(listed.get(name), (list, tuple)) else values[0]
        for name, letters in self.products.items():
            found[name] = math.prod(extents[c] for c in letters)
        return found

    def __str__(self) -> str:
        return f"{','.join(self.inputs)} -> {','.join(self.results)}"


def _index(letter: str) -> Index | None:
    if letter == _ONE:
        return Index({}, 0)
    return Index({letter: 1.0}) if letter.islower() else None
