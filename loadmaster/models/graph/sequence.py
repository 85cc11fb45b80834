"""Kernels in the sequence that takes the least memory at the most.

What lies in memory after some kernels depends on which they are, not on their sequence. So of all sequences of the same
kernels the one with the least peak is enough, set after set, each of one kernel more. Kernels wait for each other, so
there are few such sets: hundreds where there are twenty kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadmaster.models.graph.inline import Inline, base
from loadmaster.models.graph.problem import GraphProblem
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.residence import lasting_bytes, value_bytes
from loadmaster.models.graph.schedule import Kernel, Schedule

# Sets of one size that are gone on with, those of the least peaks: where there are more, the least may be missed.
MOST_SETS = 2_000


@dataclass(frozen=True)
class Fact:
    """What is known of a kernel: values that it stores, among others, and values of other kernels that it reads."""

    stores: frozenset[int]
    reads: frozenset[int]


@dataclass(frozen=True)
class Sequenced:
    """A schedule.

    Attributes:
        is_least: whether no sequence of its kernels takes less memory at the most.
    """

    schedule: Schedule
    is_least: bool


@dataclass(frozen=True)
class _Reached:
    """Kernels that have run: bytes at the most until now, bytes that lie there now, and which was the last."""

    peak: int
    lying: int
    last: int
    before: _Reached | None


def in_sequence(problem: GraphProblem, program: Program, kernels: Sequence[Kernel]) -> Sequenced | None:
    """These kernels as a schedule, the forward pass first; None where they wait for each other in a circle."""
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
    """Sequences of kernels of a program, of each of which some facts are known."""

    def __init__(self, problem: GraphProblem, program: Program) -> None:
        self.forward_count = program.forward_count
        self.results = {base(program, n) for n in program.results}
        self.sizes = [value_bytes(problem, program, n) for n in range(len(program.values))]
        self.lasting = lasting_bytes(problem, program)
        self.gradients = sum(self.sizes[n] for n in program.given("gradient").values())
        # What is stored of this is stored before, or by the same kernel.
        self.above = program.above

    def least(self, facts: Sequence[Fact], most_bytes: int | None = None) -> tuple[list[int] | None, bool]:
        """The sequence that takes the least at the most, among those that take no more than ``most_bytes``.

        Returns:
            (sequence, whether it is exact): numbers of the facts, None where there is no such sequence. Whatever else
            the kernels store and read, and whatever kernels there are beside them, takes more.
        """
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
    """What each kernel waits for, takes and leaves; sets of kernels are numbers, a bit for each.

    Attributes:
        waits: kernels that run before.
        while_it_runs: bytes beside those that lie there before.
    """

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
        # What none of these kernels stores lies there at least while it is read.
        self.while_it_runs = [
            size + sum(of.sizes[n] for n in fact.reads - stored) + (0 if is_it else of.gradients)
            for size, fact, is_it in zip(self._stored, facts, is_forward, strict=True)
        ]
        self._ends = [
            [(of.sizes[n], readers[n]) for n in (fact.reads & stored) | fact.stores if n not in of.results]
            for fact in facts
        ]

    def left(self, at: int, done: int) -> int:
        """Bytes that lie there after a kernel beyond those before, where ``done`` have run with it."""
        return self._stored[at] - sum(size for size, readers in self._ends[at] if not readers & ~done)
