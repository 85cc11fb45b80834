"""The independent checker of collective plans: runs every send forward in time, blind to how schedules are found.

A schedule is right when

- every send goes over a link that exists, and that its chunks may use;
- no resource is held by two sends at once: a send of b bytes at t over link k holds all resources of k during
  [t, t + occupancy_k(b)), b being its chunks' bytes together;
- a chunk leaves a rank only once it has arrived there: at t' + transfer_k(b) of a send at t', or at 0 at its sources;
- of a chunk that reduces, with the set of sources that a rank's part sums up so far: parts are added only where these
  sets are disjoint; a part is sent on at most once, complete, and nothing is added to it afterwards; what is copied is
  whole: the sum of all sources;
- every target of every chunk ends with it, whole.

Sends are taken in the order in which they are lowered (start, source, target), so that a chunk that arrives at the very
moment it leaves does so in that order too. A chunk of no bytes is everywhere from the start.

Source: [Shah23], sections 5.4.2 and 5.5 (what its constraints demand of a schedule).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from loadmaster.errors import InputError
from loadmaster.models.collective.collectives import named_chunk_counts
from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.logical import instance_of
from loadmaster.models.collective.plan import Algorithm, CollectivePlan, Send
from loadmaster.models.collective.problem import CollectiveProblem
from loadmaster.models.collective.verdict import Check, Journey, PlanCheck
from loadmaster.models.documents import expect_problem

__all__ = ["Check", "Journey", "PlanCheck", "check", "check_plan"]


def check(instance: Instance, sends: Iterable[Send]) -> Check:
    """Judge a schedule. Never raises for a wrong one: the verdict says what is wrong."""
    return _Replay(instance).run(sends)


class _Replay:
    """State of one replay, per (chunk, rank)."""

    def __init__(self, instance: Instance) -> None:
        self.instance, self.topology, self.chunks = instance, instance.topology, instance.chunks
        self.violations: list[str] = []
        self.journeys: list[Journey] = []
        # When a rank holds the chunk whole.
        self.whole_ns: dict[tuple[int, int], int] = {}
        # Of chunks that reduce: the sources in the rank's part as bits, when the last of them is in, and parts sent.
        self.part: dict[tuple[int, int], int] = {}
        self.part_ns: dict[tuple[int, int], int] = {}
        self.sent: set[tuple[int, int]] = set()
        self.all_sources = [sum(1 << rank for rank in set(chunk.sources)) for chunk in self.chunks]
        for index, chunk in enumerate(self.chunks):
            if not chunk.size_bytes:
                self.whole_ns.update({(index, rank): 0 for rank in range(self.topology.rank_count)})
                continue
            for rank in chunk.sources:
                if chunk.reduces:
                    self._add(index, rank, 1 << rank, 0)
                else:
                    self.whole_ns[index, rank] = 0

    def run(self, sends: Iterable[Send]) -> Check:
        """Send by send, then resources, then the postcondition."""
        for send in sorted(sends, key=lambda s: (s.start_ns, s.source, s.target)):
            self._send(send)
        self._resources()
        time_ns = self._postcondition()
        return Check(
            ok=not self.violations,
            violations=tuple(self.violations),
            topology=self.topology,
            time_ns=time_ns,
            journeys=tuple(self.journeys),
            arrivals=self.whole_ns,
        )

    def _wrong(self, text: str) -> None:
        self.violations.append(text)

    def _says(self, send: Send, text: str) -> None:
        """What is wrong with a send."""
        self._wrong(f"the send from rank {send.source} to {send.target} at {send.start_ns} ns{text}")

    def _send(self, send: Send) -> None:
        count = len(self.chunks)
        known = [c for c in send.chunks if 0 <= c < count]
        if len(known) < len(send.chunks) or not known:
            self._says(send, f" carries chunks {list(send.chunks)}, of {count} that exist")
        if len(known) > 1 and any(a >= b for a, b in itertools.pairwise(known)):
            self._says(send, f" carries chunks {list(send.chunks)}: they must ascend")
        if send.start_ns < 0:
            self._says(send, " starts before the collective does")
        index = self.topology.link_between.get((send.source, send.target))
        if index is None:
            self._says(send, ": there is no such link")
            return
        link = self.topology.links[index]
        size_bytes = 0
        for c in known:
            chunk = self.chunks[c]
            size_bytes += chunk.size_bytes
            if chunk.senders is not None and not self.instance.may_send(c, link):
                self._says(send, f" carries chunk {c}, which may not use this link")
        busy_until_ns = send.start_ns + link.occupancy_ns(size_bytes)
        arrives_ns = busy_until_ns + link.latency_ns
        self.journeys.append(Journey(send, index, busy_until_ns, arrives_ns))
        for c in known:
            if not self.chunks[c].size_bytes:
                continue
            if send.combines:
                self._combine(c, send, arrives_ns)
            else:
                self._copy(c, send, arrives_ns)

    def _copy(self, c: int, send: Send, arrives_ns: int) -> None:
        """A whole value, from a rank that has it."""
        held_ns = self.whole_ns.get((c, send.source))
        if held_ns is None and (c, send.source) in self.part:
            missing = self._missing(c, self.part[c, send.source])
            self._says(send, f" copies chunk {c}, in which the parts of ranks {missing} are missing")
        elif held_ns is None:
            self._says(send, f" carries chunk {c}, which its source does not hold")
        elif held_ns > send.start_ns:
            self._says(send, f" carries chunk {c}, which is there at {held_ns} ns")
        here = c, send.target
        if self.part.get(here) and here not in self.sent and here not in self.whole_ns:
            self._says(send, f" copies chunk {c} over a part that was not sent on")
        self.whole_ns[here] = min(arrives_ns, self.whole_ns.get(here, arrives_ns))

    def _combine(self, c: int, send: Send, arrives_ns: int) -> None:
        """The source's part, added to the target's."""
        if not self.chunks[c].reduces:
            self._says(send, f" adds chunk {c}, which is no sum")
            return
        there, here = (c, send.source), (c, send.target)
        part = self.part.get(there)
        if part is None:
            self._says(send, f" adds chunk {c}, of which its source holds no part")
            return
        if there in self.sent:
            self._says(send, f" adds a part of chunk {c} that was sent before")
        elif self.part_ns[there] > send.start_ns:
            self._says(send, f" adds a part of chunk {c} that is complete at {self.part_ns[there]} ns")
        self.sent.add(there)
        twice = self.part.get(here, 0) & part
        if twice:
            ranks = [rank for rank in range(self.topology.rank_count) if twice >> rank & 1]
            self._says(send, f" adds the parts of ranks {ranks} of chunk {c} to a sum that has them")
        elif here in self.sent:
            self._says(send, f" adds to a part of chunk {c} that was sent on")
        elif here in self.whole_ns:
            self._says(send, f" adds to chunk {c}, which its target holds whole")
        self._add(c, send.target, part, arrives_ns)

    def _add(self, c: int, rank: int, part: int, at_ns: int) -> None:
        key = c, rank
        self.part[key] = self.part.get(key, 0) | part
        self.part_ns[key] = max(self.part_ns.get(key, 0), at_ns)
        if self.part[key] == self.all_sources[c]:
            self.whole_ns[key] = min(self.part_ns[key], self.whole_ns.get(key, self.part_ns[key]))

    def _missing(self, c: int, part: int) -> list[int]:
        return [rank for rank in sorted(set(self.chunks[c].sources)) if not part >> rank & 1]

    def _resources(self) -> None:
        """One send at a time on each resource. Journeys are by start already."""
        last: dict[int, Journey] = {}
        for journey in self.journeys:
            send = journey.send
            # What holds a resource for no time at all collides with nothing.
            if journey.busy_until_ns == send.start_ns:
                continue
            for resource in self.topology.links[journey.link].resources:
                before = last.get(resource)
                if before is not None and before.busy_until_ns > send.start_ns:
                    self._wrong(
                        f"{self.topology.resources[resource]} is held until {before.busy_until_ns} ns by the send from "
                        f"rank {before.send.source} to {before.send.target}, and from {send.start_ns} ns by that from "
                        f"{send.source} to {send.target}"
                    )
                if before is None or journey.busy_until_ns > before.busy_until_ns:
                    last[resource] = journey

    def _postcondition(self) -> int:
        """Every target holds its chunks; returns when the last one does."""
        time_ns = 0
        for index, chunk in enumerate(self.chunks):
            for rank in chunk.targets:
                held_ns = self.whole_ns.get((index, rank))
                if held_ns is not None:
                    time_ns = max(time_ns, held_ns)
                elif (index, rank) in self.part:
                    missing = self._missing(index, self.part[index, rank])
                    self._wrong(f"rank {rank} ends with chunk {index} without the parts of ranks {missing}")
                else:
                    self._wrong(f"rank {rank} ends without chunk {index}")
        return time_ns


def check_plan(problem: CollectiveProblem, plan: CollectivePlan) -> PlanCheck:
    """Judge every algorithm of a plan at its own size and against what the problem names, and the table.

    Raises:
        InputError: the plan belongs to another problem, or holds no algorithm (infeasible).
    """
    expect_problem(plan.problem_sha256, problem.sha256)
    if not plan.algorithms:
        raise InputError("status", plan.status, "holds no algorithm to check", "Give a plan that was found feasible.")
    violations, named = _table(problem, plan.algorithms), named_chunk_counts(problem)
    checks: list[Check] = []
    for algorithm in plan.algorithms:
        where = f"{algorithm.size_bytes} bytes, {algorithm.chunk_count} chunks"
        try:
            instance = instance_of(problem, algorithm.size_bytes, algorithm.chunk_count, algorithm.form)
        except InputError as error:
            violations.append(f"{where}: {error}")
            continue
        verdict = check(instance, algorithm.sends)
        checks.append(verdict)
        if named and algorithm.chunk_count not in named:
            violations.append(f"{where}: the problem names {', '.join(map(str, named))}")
        violations += [f"{where}: {text}" for text in verdict.violations]
        violations += [f"{where}: {text}" for text in _figures(algorithm, verdict)]
    return PlanCheck(ok=not violations, violations=tuple(violations), algorithms=tuple(checks))


def _table(problem: CollectiveProblem, algorithms: Sequence[Algorithm]) -> list[str]:
    """What is wrong with the table as such."""
    violations = []
    sizes = [algorithm.size_bytes for algorithm in algorithms]
    missing = [size for size in problem.sizes_bytes if size not in sizes]
    if missing:
        violations.append(f"no algorithm is for {missing[0]} bytes, which the problem asks for")
    if sizes != sorted(set(sizes)):
        violations.append(f"the algorithms' sizes do not ascend: {sizes}")
    starts = [algorithm.from_bytes for algorithm in algorithms]
    if starts != sorted(starts) or starts[0] > sizes[0]:
        violations.append(f"the algorithms' from_bytes do not ascend from the smallest size: {starts}")
    return violations


def _figures(algorithm: Algorithm, verdict: Check) -> list[str]:
    """What an algorithm says of itself and the replay does not."""
    violations = []
    if algorithm.time_ns != verdict.time_ns:
        violations.append(f"is said to take {algorithm.time_ns} ns, but takes {verdict.time_ns}")
    for name in ("bound_ns", "throughput_bound_ns"):
        bound_ns = getattr(algorithm, name)
        if bound_ns > verdict.time_ns:
            violations.append(f"its {name} of {bound_ns} is above its time of {verdict.time_ns} ns")
    return violations
