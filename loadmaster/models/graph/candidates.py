"""Candidate kernels: all that a schedule of a program could consist of, each with its reads and its time.

A candidate stores some values and makes others inline. For each value that may be kept (:func:`optional`) and that it
needs, there is a candidate that reads it and one that makes it. A kernel's time depends on nothing else, so the time of
a schedule is the sum of its candidates'.

Every value that need not be kept may be, as far as the choice can matter. Left out are values that are no better kept
than some other choice, by the cost model (:mod:`.costs`), in which a value made on the way costs nothing but its reads,
except in the rows of products:

(D1)  a value that is made of one value number by number, or only repeats it: its readers can read that value.
(D2)  a value that one kernel alone reads, in rows of its own space in the order of memory and in its own pass: storing
      it and reading it back costs no less than reading what it is made from. (Not where that is a product.)
(D3)  a value from which only one other value that may be kept is made, of the same space and pass and with no more
      numbers: keeping that one saves as much. (Not where a traversal by sources or targets could make it, and has the
      other values that it is made from in its own rows.)

(D2) and (D3) hold for time alone: a value that is kept can free larger ones earlier.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from loadmaster.models.graph.costs import Costs
from loadmaster.models.graph.inline import Inline, Need, base, is_by_numbers, matrix_rows, required, rows_class
from loadmaster.models.graph.lowering import kernel_of, template_of
from loadmaster.models.graph.operators import GIVEN, OPERATORS
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.reading import come_as_they_lie
from loadmaster.models.graph.schedule import MOST_STORES, Kernel
from loadmaster.models.graph.spaces import Space, is_coarser

# Approximate limit of candidates of one order: making so many, and solving their program, takes a second each.
MOST = 5_000
_REPEATS = ("repeat_heads", "repeat_last", "pad")


def optional(program: Program, *, by_time_alone: bool) -> frozenset[int]:
    """Numbers of the values that may be kept; by time alone, (D2) and (D3) leave out more."""
    must = required(program)
    rows = _in_rows_of_products(program)
    found = {
        n
        for n, value in enumerate(program.values)
        if n not in must and value.op not in GIVEN and OPERATORS[value.op].sort != "view"
    }
    for n in sorted(found):
        if _is_by_number(program, n) or (n not in rows and program.values[n].op in _REPEATS):
            found.discard(n)
    if by_time_alone:
        needs = Inline(program, must)
        for n in sorted(found):
            reader = _only_reader(program, n)
            alone = reader in must and _is_alone_for(program, n, reader)
            if alone or (reader in found and _is_as_good(needs, n, reader)):
                found.discard(n)
    return frozenset(found)


def _is_by_number(program: Program, n: int) -> bool:
    """Return whether (D1) leaves out a value: it is made of one value number by number."""
    return is_by_numbers(program, n) and len(program.values[n].inputs) == 1


def _is_alone_for(program: Program, n: int, reader: int) -> bool:
    """Return whether (D2) leaves out a value: its one reader takes it in the order of memory."""
    over, to = program.values[reader].over, program.types[reader].space
    if matrix_rows(program, reader) or (over is not None and not come_as_they_lie(over, to)):
        return False
    return program.types[n].space == (over or to)


def _is_as_good(needs: Inline, n: int, reader: int) -> bool:
    """Return whether (D3) leaves out a value: keeping its one reader saves as much."""
    program = needs.program
    mine, other = program.types[n], program.types[reader]
    if mine.space != other.space or other.numbers > mine.numbers:
        return False
    others = needs.of(i for i in program.values[reader].inputs if base(program, i) != n)
    groups = _grouped_by(needs, reader)
    return not any(is_coarser(seen, to) or is_coarser(to, seen) for _, seen in others.seen for to in groups)


def _grouped_by(needs: Inline, n: int) -> set[Space]:
    """Spaces by which the traversals that could make a value group their rows."""
    program, found, ahead = needs.program, set[Space](), [n]
    while ahead:
        for reader in program.readers[ahead.pop()]:
            value, to = program.values[reader], program.types[reader].space
            if value.over is not None and not come_as_they_lie(value.over, to):
                found.add(to)
            if reader not in needs.kept:
                ahead.append(reader)
    return found


def _only_reader(program: Program, n: int) -> int:
    """Only value that is made from a value, if in the same pass; else -1."""
    readers = _readers(program, n)
    if len(readers) != 1:
        return -1
    (reader,) = readers
    return reader if (n < program.forward_count) == (reader < program.forward_count) else -1


def _readers(program: Program, n: int) -> set[int]:
    found: set[int] = set()
    for reader in program.readers[n]:
        if OPERATORS[program.values[reader].op].sort == "view":
            found |= _readers(program, reader)
        else:
            found.add(reader)
    return found


def _in_rows_of_products(program: Program) -> set[int]:
    """Values with something else than maps between them and a product: one on the way must be kept (S3)."""
    found: set[int] = set()
    for n in range(len(program.values)):
        for i in matrix_rows(program, n):
            found |= _others_below(program, base(program, i))
    return found


def _others_below(program: Program, n: int) -> set[int]:
    """Values from this one down, through maps, to operators on rows that are not maps, both ends included."""
    value = program.values[n]
    if value.op in GIVEN or OPERATORS[value.op].sort not in ("map", "row"):
        return set()
    if not is_by_numbers(program, n):
        return {n}
    below: set[int] = set()
    for i in value.inputs:
        below |= _others_below(program, base(program, i))
    return below | {n} if below else set()


@dataclass(frozen=True)
class Candidate:
    """Kernel that a schedule may contain; it ``reads`` what others keep, and makes ``inline`` what could be kept."""

    kernel: Kernel
    time_us: float
    reads: frozenset[int]
    inline: frozenset[int]


@dataclass
class Candidates:
    """Candidates of one program; ``are_all`` is False if some were left out because they were too many."""

    program: Program
    must: frozenset[int]
    may: frozenset[int]
    found: list[Candidate]
    are_all: bool = True

    @property
    def least_us(self) -> float:
        """Lower bound of all schedules' time, us: each value that must be kept pays an equal part of a kernel's."""
        return sum(self._parts_us.values())

    def within(self, limit_us: float) -> Candidates:
        """Select the candidates of schedules within a limit: beyond its values' parts of the lower bound, each may take
        only what the limit leaves."""
        parts_us = self._parts_us
        left_us = limit_us - sum(parts_us.values())
        found = [c for c in self.found if c.time_us - sum(parts_us.get(n, 0.0) for n in c.kernel.stores) <= left_us]
        return replace(self, found=found)

    @cached_property
    def _parts_us(self) -> dict[int, float]:
        least = dict.fromkeys(self.must, math.inf)
        for candidate in self.found:
            stored = [n for n in candidate.kernel.stores if n in self.must]
            for n in stored:
                least[n] = min(least[n], candidate.time_us / len(stored))
        return least


def candidates(costs: Costs, *, by_time_alone: bool) -> Candidates:
    """Enumerate the candidate kernels of a program; where time alone counts, fewer values are worth keeping."""
    program = costs.program
    must, may = required(program), optional(program, by_time_alone=by_time_alone)
    making = _Making(costs, must, may)
    found: list[Candidate] = []
    # Kernels of few values first: with these alone there is a schedule.
    for stores in sorted(making.groups(), key=len):
        if len(found) > MOST and len(stores) > 1:
            return Candidates(program, must, may, found, are_all=False)
        found += itertools.islice(making.variants(stores), MOST)
    return Candidates(program, must, may, found, are_all=len(found) <= MOST)


class _Making:
    def __init__(self, costs: Costs, must: frozenset[int], may: frozenset[int]) -> None:
        self.costs, self.program, self.must, self.may = costs, costs.program, must, may
        self.needs = Inline(self.program, must)

    def groups(self) -> Iterator[tuple[int, ...]]:
        """Iterate over sets of values that one kernel may store: each by itself, and those that fit together."""
        alike: dict[object, list[int]] = defaultdict(list)
        for n in sorted(self.must | self.may):
            template = template_of(self.program, n)
            is_forward = n < self.program.forward_count
            if template in ("outer", "fold"):
                yield (n,)
            elif template == "gemm":
                yield from self._some((n,), self._epilogues(n), MOST_STORES[template])
            elif template == "map":
                alike[template, rows_class(self.program.types[n].space), is_forward].append(n)
            else:
                value = self.program.values[n]
                alike[template, value.over, value.space, is_forward].append(n)
        for values in alike.values():
            yield from self._some((), values, MOST_STORES[template_of(self.program, values[0])])

    def _some(self, always: tuple[int, ...], others: Sequence[int], most: int) -> Iterator[tuple[int, ...]]:
        for size in range(0 if always else 1, most - len(always) + 1):
            for some in itertools.combinations(others, size):
                if self._fits_one_kernel({*always, *some}):
                    yield (*always, *some)

    def _epilogues(self, linear: int) -> list[int]:
        """Values that could be made from the rows of a product: they read it, where nothing else is kept."""
        space, is_forward = rows_class(self.program.types[linear].space), linear < self.program.forward_count
        return [
            n
            for n in sorted(self.must | self.may)
            if template_of(self.program, n) == "map"
            and rows_class(self.program.types[n].space) == space
            and (n < self.program.forward_count) == is_forward
            and linear in self.needs.to_make(n).reads - self.needs.to_make(n).elsewhere
        ]

    def _fits_one_kernel(self, stores: set[int]) -> bool:
        """Return whether no value that every schedule keeps is on a path between two of these values."""
        if len(stores) == 1:
            return True
        after: set[int] = set()
        behind_another: set[int] = set()
        for n in range(min(stores) + 1, max(stores) + 1):
            inputs = self.program.values[n].inputs
            if not behind_another.isdisjoint(inputs):
                if n in stores:
                    return False
                behind_another.add(n)
            elif not after.isdisjoint(inputs) or not stores.isdisjoint(inputs):
                (behind_another if n in self.must and n not in stores else after).add(n)
        return True

    def variants(self, stores: tuple[int, ...]) -> Iterator[Candidate]:
        """Iterate over candidates that store these values, one for each way to read or make what may be kept."""
        open_choices: list[frozenset[int]] = [frozenset()]
        inline_of: list[frozenset[int]] = [frozenset()]
        kernel = kernel_of(self.program, stores)
        while open_choices:
            read, inline = open_choices.pop(), inline_of.pop()
            needs = Inline(self.program, self.must | read | {*stores})
            need = Need()
            for n in stores:
                need |= needs.to_make(n)
            undecided = sorted((need.inline & self.may) - inline)
            if undecided:
                first = undecided[-1]
                open_choices += [read | {first}, read]
                inline_of += [inline, inline | {first}]
                continue
            if self._holds(needs, need, stores):
                kept = frozenset(n for n in need.reads if self.program.values[n].op not in GIVEN) - {*stores}
                yield Candidate(*self.costs.fastest(kernel, need), kept, inline & need.inline)

    def _holds(self, needs: Inline, need: Need, stores: tuple[int, ...]) -> bool:
        """Check (S3) and (S5) for one kernel, and (S2) within it."""
        if not need.elsewhere.isdisjoint(stores):
            return False
        # A kernel cannot wait for what other kernels make of its own values.
        if any(self.program.above[r].intersection(stores) for r in need.reads.difference(stores)):
            return False
        for n in stores:
            rows = needs.of(matrix_rows(self.program, n))
            if not all(is_by_numbers(self.program, v) for v in rows.inline):
                return False
        products = [n for n in stores if template_of(self.program, n) == "gemm"]
        if not products:
            return True
        return all(n in products or not needs.to_make(n).reads.isdisjoint(stores) for n in stores)
