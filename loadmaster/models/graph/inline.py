"""Values made inline, inside a kernel, and the values that a kernel reads for that: kept or given ones.

Views are looked through: to read ``source(h)`` is to read ``h``. A value that is neither kept nor given is made where
it is needed, from its own inputs, and so on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass

from loadmaster.models.graph.operators import GIVEN, OPERATORS
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.schedule import must_be_kept
from loadmaster.models.graph.spaces import Space

OF_NODES: frozenset[Space] = frozenset({"node", "source", "target"})


@dataclass(frozen=True)
class Need:
    """Values that a value is made from.

    Attributes:
        seen: values kept or given, each with the space by which its rows are found: its own, or ``source`` or
            ``target`` where edges read it at their nodes.
        elsewhere: those that edges read at their nodes: perhaps in other rows than the kernel's own.
        inline: values made on the way.
    """

    seen: frozenset[tuple[int, Space]] = frozenset()
    elsewhere: frozenset[int] = frozenset()
    inline: frozenset[int] = frozenset()

    @property
    def reads(self) -> frozenset[int]:
        """Values kept or given, without the spaces by which they are read."""
        return frozenset(n for n, _ in self.seen)

    def __or__(self, other: Need) -> Need:
        return Need(self.seen | other.seen, self.elsewhere | other.elsewhere, self.inline | other.inline)


class Inline:
    """Lookup of what each value is made from, when some values are kept."""

    def __init__(self, program: Program, kept: Set[int]) -> None:
        self.program, self.kept = program, kept
        self._of: dict[int, Need] = {}

    def to_make(self, n: int) -> Need:
        """Find what a kernel that stores a value needs."""
        return self.of(self.program.values[n].inputs)

    def of(self, inputs: Iterable[int]) -> Need:
        """Find what a kernel that uses these values needs."""
        found = Need()
        for i in inputs:
            found |= self._needed(i)
        return found

    def _needed(self, n: int) -> Need:
        if n not in self._of:
            self._of[n] = self._found(n)
        return self._of[n]

    def _found(self, n: int) -> Need:
        value = self.program.values[n]
        if n in self.kept or value.op in GIVEN:
            return Need(frozenset({(n, self.program.types[n].space)}))
        need = self.of(value.inputs)
        if value.op in ("source", "target"):
            end: Space = "source" if value.op == "source" else "target"
            return Need(frozenset((r, end) for r in need.reads), need.reads, need.inline)
        if OPERATORS[value.op].sort == "view":
            return need
        return need | Need(inline=frozenset({n}))


def base(program: Program, n: int) -> int:
    """Return the value that a view shows; a value itself where it is not a view."""
    while OPERATORS[program.values[n].op].sort == "view":
        (n,) = program.values[n].inputs
    return n


def rows_class(space: Space) -> Space:
    """Common name of spaces whose rows are the same: ``node`` for nodes, sources and targets."""
    return "node" if space in OF_NODES else space


def shown_whole(program: Program) -> Iterator[tuple[str, int]]:
    """Iterate over users, in words, and the values that must be kept or given for them, views looked through."""
    for n, value in enumerate(program.values):
        if value.op in ("source", "target"):
            yield f"{value.name}, which edges see of their nodes", base(program, n)
        elif value.op == "linear":
            yield f"{value.name}, whose weight it is", base(program, value.inputs[1])
        elif OPERATORS[value.op].sort == "weight":
            for i in value.inputs:
                yield f"{value.name}, which multiplies weights", base(program, i)
    for n in program.results:
        yield "the result", base(program, n)


def required(program: Program) -> frozenset[int]:
    """Values that every schedule keeps: (S1) and (S3) whatever else is chosen."""
    found = {n for n in range(len(program.values)) if must_be_kept(program, n)}
    found |= {n for _, n in shown_whole(program) if program.values[n].op not in GIVEN}
    return frozenset(found)


def matrix_rows(program: Program, n: int) -> tuple[int, ...]:
    """Inputs of a ``linear`` or an ``outer`` whose rows enter a product of matrices; empty for other values."""
    value = program.values[n]
    return value.inputs[:1] if value.op == "linear" else value.inputs if value.op == "outer" else ()


def is_by_numbers(program: Program, n: int) -> bool:
    """Return whether each number of a value is made from numbers at its own place: its operator is a map."""
    return OPERATORS[program.values[n].op].sort == "map"
