"""Sequence of kernels with the least peak memory, by dynamic programming over sets of kernels.

The values in memory after some kernels depend on which they are, not on their sequence. So of all sequences of the same
kernels the one with the least peak is enough, set after set, each of one kernel more. Kernels wait for each other, so
there are few such sets: hundreds for twenty kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadmaster.models.graph.inline import Inline, base
from loadmaster.models.graph.problem import GraphProblem
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.residence import lasting_bytes, value_bytes
from loadmaster.models.graph.schedule import Kernel, Schedule

# Sets of one size that are continued, those of the least peaks: where there are more, the optimum may be missed.
MOST_SETS = 2_000


@dataclass(frozen=True)
class Fact:
    """Fact about a kernel: values that it stores, perhaps among others, and values of other kernels that it reads."""

    stores: frozenset[int]
    reads: frozenset[int]


@dataclass(frozen=True)
class Sequenced:
    """Schedule of kernels put into sequence; ``is_least`` says that no other sequence has a lower peak."""

    schedule: Schedule
    is_least: bool


@dataclass(frozen=True)
class _Reached:
    """State after a set of kernels: peak bytes so far, bytes in memory after it, and the last kernel."""

    peak: int
    lying: int
    last: int
    before: _Reached | None


def in_sequence(problem: GraphProblem, program: Program, kernels: Sequence[Kernel]) -> Sequenced | None:
    """Put kernels into sequence, the forward pass first; None where they wait for each other in a cycle."""
    kept = frozenset(n for kernel in kernels for n in kernel.stores)
    needs = Inline(program, kept)
    kernels = sorted(kernels, key=lambda kernel: min(kernel.stores))
    facts = []
    for kernel in kernels:
        reads = frozenset(r for n in kernel.stores for r in needs.to_make(n).reads if r in kept)
        facts.append(Fact(frozenset(kernel.stores), reads - {*kernel.stores}))
    order, is_least = Sequences(problem, program).least(facts)
    if order is None:
        return None
    forward = sum(min(kernel.stores) < program.forward_count for kernel in kernels)
    return Sequenced(Schedule(tuple(kernels[at] for at in order), forward), is_least)


class Sequences:
    """Search for sequences of a program's kernels, given some facts about each kernel."""

    def __init__(self, problem: GraphProblem, program: Program) -> None:
        self.forward_count = program.forward_count
        self.results = {base(program, n) for n in program.results}
        self.sizes = [value_bytes(problem, program, n) for n in range(len(program.values))]
        self.lasting = lasting_bytes(problem, program)
        self.gradients = sum(self.sizes[n] for n in program.given("gradient").values())
        # Ancestors of each value: those that are stored are stored before it, or by the same kernel.
        self.above = program.above

    def least(self, facts: Sequence[Fact], most_bytes: int | None = None) -> tuple[list[int] | None, bool]:
        """Find the sequence with the least peak, of at most ``most_bytes``: numbers of the facts, None where there is
        none, and whether the search was complete. More stores, reads or kernels only raise the peak."""
        most = None if most_bytes is None else most_bytes - self.lasting
        steps = _Steps(self, facts)
        exact = True
        sets = {0: _Reached(0, 0, -1, None)}
        for _ in facts:
            more: dict[int, _Reached] = {}
            for done, reached in sets.items():
                for at, waits in enumerate(steps.waits):
                    if done >> at & 1 or waits & ~done:
                        continue
                    now = done | 1 << at
                    peak = max(reached.peak, reached.lying + steps.while_it_runs[at])
                    if (most is None or peak <= most) and (now not in more or peak < more[now].peak):
                        more[now] = _Reached(peak, reached.lying + steps.left(at, now), at, reached)
            if not more:
                return None, exact
            sets = more
            if len(sets) > MOST_SETS:
                exact = False
                sets = dict(sorted(sets.items(), key=lambda one: (one[1].peak, one[1].lying))[:MOST_SETS])
        (step,) = sets.values()
        order: list[int] = []
        while step.before is not None:
            order.append(step.last)
            step = step.before
        return order[::-1], exact


class _Steps:
    """Steps of the search, where sets of kernels are bit masks: the kernels that each kernel waits for, and the bytes
    that it adds to those in memory before it."""

    def __init__(self, of: Sequences, facts: Sequence[Fact]) -> None:
        stored = frozenset[int]().union(*(fact.stores for fact in facts))
        is_forward = [min(fact.stores) < of.forward_count for fact in facts]
        forward = sum(1 << at for at, is_it in enumerate(is_forward) if is_it)
        self.waits = []
        for at, fact in enumerate(facts):
            above = frozenset[int]().union(*(of.above[n] for n in fact.stores))
            before = sum(1 << i for i, other in enumerate(facts) if i != at and not above.isdisjoint(other.stores))
            self.waits.append(before if is_forward[at] else before | forward)
        readers = {n: sum(1 << at for at, fact in enumerate(facts) if n in fact.reads) for n in stored}
        self._stored = [sum(of.sizes[n] for n in fact.stores) for fact in facts]
        # A value that none of these kernels stores is in memory at least while it is read.
        self.while_it_runs = [
            size + sum(of.sizes[n] for n in fact.reads - stored) + (0 if is_it else of.gradients)
            for size, fact, is_it in zip(self._stored, facts, is_forward, strict=True)
        ]
        self._ends = [
            [(of.sizes[n], readers[n]) for n in (fact.reads & stored) | fact.stores if n not in of.results]
            for fact in facts
        ]

    def left(self, at: int, done: int) -> int:
        """Change of the bytes in memory by a kernel, where ``done`` are the kernels that have run, with this one."""
        return self._stored[at] - sum(size for size, readers in self._ends[at] if not readers & ~done)


def conflict(sequences: Sequences, facts: Sequence[Fact], most_bytes: int) -> list[Fact] | None:
    """Find a minimal set of facts for which no sequence fits; None where one fits, or the search was not complete.
    Storing and reading more, or running more kernels, takes no less: no other set of kernels with these facts fits."""

    def is_conflict(some: Sequence[Fact]) -> bool:
        return sequences.least(some, most_bytes) == (None, True)

    def by_size(values: frozenset[int]) -> list[int]:
        return sorted(values, key=lambda n: (sequences.sizes[n], n))

    if not is_conflict(facts):
        return None
    left = sorted(facts, key=lambda fact: (sum(sequences.sizes[n] for n in fact.stores | fact.reads), min(fact.stores)))
    for fact in [*left]:
        fewer = [other for other in left if other is not fact]
        if is_conflict(fewer):
            left = fewer
    for at in range(len(left)):
        for n in by_size(left[at].reads | left[at].stores):
            weaker = Fact(left[at].stores - {n}, left[at].reads - {n})
            if weaker.stores and is_conflict([*left[:at], weaker, *left[at + 1 :]]):
                left[at] = weaker
    return left
