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
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from loadmaster.errors import InputError
from loadmaster.models.collective.collectives import instance_of, named_chunk_counts
from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.plan import Algorithm, CollectivePlan, Send
from loadmaster.models.collective.problem import CollectiveProblem
from loadmaster.models.collective.verdict import CollectiveCheck, Journey, PlanCheck
from loadmaster.models.documents import expect_problem

__all__ = ["CollectiveCheck", "Journey", "PlanCheck", "check", "check_plan"]

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


def check(instance: Instance, sends: Iterable[Send]) -> CollectiveCheck:
    """Judge a schedule. Never raises for a wrong one: the verdict says what is wrong."""
    return _Replay(instance, sends).run()


class _Replay:
    """One replay. Arrays of sends are in the order in which they are lowered; of what they carry, a row for each chunk.

    What is copied alone is looked up in the sorted arrivals of each (chunk, rank), all at once; sums, whose parts
    depend on one another, are added up send by send.

    Attributes:
        link: [sends] -1 for none.
        row_send, row_chunk: [rows] of the chunks that exist, over links that do.
        whole_ns: per (chunk, rank) of chunks that reduce, when the rank holds it whole.
        part, part_ns, sent: the sources in the rank's part as bits, when the last of them is in, and parts sent.
    """

    def __init__(self, instance: Instance, sends: Iterable[Send]) -> None:
        self.instance, self.topology, self.chunks = instance, instance.topology, instance.chunks
        self.sends = sorted(sends, key=attrgetter("start_ns", "source", "target"))
        self.wrong: list[tuple[int, str]] = []
        count, ranks, links = len(self.sends), self.topology.rank_count, self.topology.links
        self.start, self.source, self.target = (
            np.fromiter(map(attrgetter(name), self.sends), np.int64, count) for name in ("start_ns", "source", "target")
        )
        self.combines: BoolArray = np.fromiter(map(attrgetter("combines"), self.sends), np.bool_, count)
        self.size_bytes = np.array([chunk.size_bytes for chunk in self.chunks], dtype=np.int64)
        self.reduces = np.array([chunk.reduces for chunk in self.chunks], dtype=np.bool_)
        between = np.full((ranks, ranks), -1, dtype=np.int64)
        for index, link in enumerate(links):
            between[link.source, link.target] = index
        inside = (self.source >= 0) & (self.source < ranks) & (self.target >= 0) & (self.target < ranks)
        self.link = np.full(count, -1, dtype=np.int64)
        self.link[inside] = between[self.source[inside], self.target[inside]]
        self._rows()
        carried_bytes = np.zeros(count, dtype=np.int64)
        np.add.at(carried_bytes, self.row_send, self.size_bytes[self.row_chunk])
        self.busy_until = self.start + self._occupancy(carried_bytes)
        latency = np.array([link.latency_ns for link in links] + [0], dtype=np.int64)
        self.arrives = self.busy_until + latency[self.link]
        self.whole_ns: dict[tuple[int, int], int] = {}
        self.part: dict[tuple[int, int], int] = {}
        self.part_ns: dict[tuple[int, int], int] = {}
        self.sent: set[tuple[int, int]] = set()
        self.all_sources = [sum(1 << rank for rank in set(chunk.sources)) for chunk in self.chunks]

    def run(self) -> CollectiveCheck:
        """Run the replay: senders, copies and sums, then resources, then the postcondition."""
        self._senders()
        keys, times = self._copies()
        self._sums()
        said = []
        for index, text in sorted(self.wrong, key=lambda found: found[0]):
            send = self.sends[index]
            said.append(f"the send from rank {send.source} to {send.target} at {send.start_ns} ns{text}")
        if self.whole_ns:
            summed = np.array([c * self.topology.rank_count + r for c, r in self.whole_ns], dtype=np.int64)
            keys = np.concatenate([keys, summed])
            times = np.concatenate([times, np.array(list(self.whole_ns.values()), dtype=np.int64)])
            order = np.argsort(keys)
            keys, times = keys[order], times[order]
        time_ns, missing = self._postcondition(keys, times)
        violations = (*said, *self._resources(), *missing)
        linked = np.flatnonzero(self.link >= 0).tolist()
        return CollectiveCheck(
            ok=not violations,
            violations=violations,
            topology=self.topology,
            time_ns=time_ns,
            sends=tuple(self.sends[i] for i in linked),
            links=self.link[linked],
            busy_until_ns=self.busy_until[linked],
            arrives_ns=self.arrives[linked],
            held=keys,
            held_ns=times,
        )

    def _rows(self) -> None:
        """The chunks of every send; what is wrong with them, and with links."""
        lengths = np.fromiter((len(send.chunks) for send in self.sends), np.int64, len(self.sends))
        every = itertools.chain.from_iterable(send.chunks for send in self.sends)
        chunk = np.fromiter(every, np.int64, int(lengths.sum()))
        send = np.repeat(np.arange(len(self.sends)), lengths)
        exist = (chunk >= 0) & (chunk < len(self.chunks))
        for i in np.flatnonzero((np.bincount(send[exist], minlength=len(lengths)) < lengths) | (lengths == 0)).tolist():
            carried = list(self.sends[i].chunks)
            self.wrong.append((i, f" carries chunks {carried}, of {len(self.chunks)} that exist"))
        send, chunk = send[exist], chunk[exist]
        turns = (send[1:] == send[:-1]) & (chunk[1:] <= chunk[:-1])
        for i in np.unique(send[1:][turns]).tolist():
            self.wrong.append((i, f" carries chunks {list(self.sends[i].chunks)}: they must ascend"))
        self.wrong += [(i, " starts before the collective does") for i in np.flatnonzero(self.start < 0).tolist()]
        self.wrong += [(i, ": there is no such link") for i in np.flatnonzero(self.link < 0).tolist()]
        linked = self.link[send] >= 0
        self.row_send, self.row_chunk = send[linked], chunk[linked]

    def _occupancy(self, carried_bytes: IntArray) -> IntArray:
        """Occupancy of each send, [sends], computed once for each size and link."""
        sizes, size = np.unique(carried_bytes, return_inverse=True)
        pairs, pair = np.unique(self.link * len(sizes) + size.ravel(), return_inverse=True)
        each = [
            self.topology.links[k].occupancy_ns(int(sizes[place])) if k >= 0 else 0
            for k, place in (divmod(p, len(sizes)) for p in pairs.tolist())
        ]
        found: IntArray = np.array(each, dtype=np.int64)[pair.ravel()]
        return found

    def _senders(self) -> None:
        """Refuse chunks over links that they may not use."""
        alike: dict[frozenset[int], list[int]] = {}
        for c, chunk in enumerate(self.chunks):
            if chunk.senders is not None:
                alike.setdefault(chunk.senders, []).append(c)
        for chunks in alike.values():
            refused = [not self.instance.may_send(chunks[0], link) for link in self.topology.links]
            rows = np.flatnonzero(np.isin(self.row_chunk, chunks))
            for row in rows[np.array(refused, dtype=np.bool_)[self.link[self.row_send[rows]]]].tolist():
                text = f" carries chunk {self.row_chunk[row]}, which may not use this link"
                self.wrong.append((int(self.row_send[row]), text))

    def _copies(self) -> tuple[IntArray, IntArray]:
        """Replay copies of whole values, each from a rank that has it. Returns the (chunk, rank) that hold chunks that
        do not reduce, as chunk * ranks + rank, and since when."""
        ranks, count = self.topology.rank_count, len(self.sends)
        plain = (self.size_bytes[self.row_chunk] > 0) & ~self.reduces[self.row_chunk] & ~self.combines[self.row_send]
        send, chunk = self.row_send[plain], self.row_chunk[plain]
        first = [
            c * ranks + rank
            for c, of in enumerate(self.chunks)
            if not (of.reduces and of.size_bytes)
            for rank in (of.sources if of.size_bytes else range(ranks))
        ]
        key = np.concatenate([np.array(first, dtype=np.int64), chunk * ranks + self.target[send]])
        at = np.concatenate([np.zeros(len(first), dtype=np.int64), self.arrives[send]])
        # By (chunk, rank), in the order of sends; what is there at first comes before all of them.
        place = key * (count + 1) + np.concatenate([np.zeros(len(first), dtype=np.int64), send + 1])
        order = np.argsort(place, kind="stable")
        key, at, place = key[order], at[order], place[order]
        earliest = -_highest_so_far(key, -at)
        there = chunk * ranks + self.source[send]
        before = np.searchsorted(place, there * (count + 1) + send + 1) - 1
        has = (before >= 0) & (key[before] == there) if len(key) else np.zeros(len(send), dtype=np.bool_)
        late = has & (earliest[before] > self.start[send]) if len(key) else has
        for row in np.flatnonzero(~has).tolist():
            self.wrong.append((int(send[row]), f" carries chunk {chunk[row]}, which its source does not hold"))
        for row in np.flatnonzero(late).tolist():
            text = f" carries chunk {chunk[row]}, which is there at {earliest[before[row]]} ns"
            self.wrong.append((int(send[row]), text))
        last = (
            np.flatnonzero(np.concatenate([key[1:] != key[:-1], [True]])) if len(key) else np.zeros(0, dtype=np.int64)
        )
        return key[last], earliest[last]

    def _sums(self) -> None:
        """Replay the chunks that reduce, and what is added to others."""
        for index, chunk in enumerate(self.chunks):
            if chunk.reduces and chunk.size_bytes:
                for rank in chunk.sources:
                    self._add(index, rank, 1 << rank, 0)
        rows = (self.reduces[self.row_chunk] | self.combines[self.row_send]) & (self.size_bytes[self.row_chunk] > 0)
        for i, c in zip(self.row_send[rows].tolist(), self.row_chunk[rows].tolist(), strict=True):
            move = self._combine if self.sends[i].combines else self._copy
            for text in move(c, self.sends[i], int(self.arrives[i])):
                self.wrong.append((i, text))

    def _copy(self, c: int, send: Send, arrives_ns: int) -> Iterator[str]:
        """Copy a whole sum from a rank that has it, and yield what is wrong."""
        there, here = (c, send.source), (c, send.target)
        held_ns = self.whole_ns.get(there)
        if held_ns is None and there in self.part:
            missing = self._missing(c, self.part[there])
            yield f" copies chunk {c}, in which the parts of ranks {missing} are missing"
        elif held_ns is None:
            yield f" carries chunk {c}, which its source does not hold"
        elif held_ns > send.start_ns:
            yield f" carries chunk {c}, which is there at {held_ns} ns"
        if self.part.get(here) and here not in self.sent and here not in self.whole_ns:
            yield f" copies chunk {c} over a part that was not sent on"
        self.whole_ns[here] = min(arrives_ns, self.whole_ns.get(here, arrives_ns))

    def _combine(self, c: int, send: Send, arrives_ns: int) -> Iterator[str]:
        """The source's part, added to the target's."""
        if not self.chunks[c].reduces:
            yield f" adds chunk {c}, which is no sum"
            return
        there, here = (c, send.source), (c, send.target)
        part = self.part.get(there)
        if part is None:
            yield f" adds chunk {c}, of which its source holds no part"
            return
        if there in self.sent:
            yield f" adds a part of chunk {c} that was sent before"
        elif self.part_ns[there] > send.start_ns:
            yield f" adds a part of chunk {c} that is complete at {self.part_ns[there]} ns"
        self.sent.add(there)
        twice = self.part.get(here, 0) & part
        if twice:
            ranks = [rank for rank in range(self.topology.rank_count) if twice >> rank & 1]
            yield f" adds the parts of ranks {ranks} of chunk {c} to a sum that has them"
        elif here in self.sent:
            yield f" adds to a part of chunk {c} that was sent on"
        elif here in self.whole_ns:
            yield f" adds to chunk {c}, which its target holds whole"
        self._add(c, send.target, part, arrives_ns)

    def _add(self, c: int, rank: int, part: int, at_ns: int) -> None:
        key = c, rank
        self.part[key] = self.part.get(key, 0) | part
        self.part_ns[key] = max(self.part_ns.get(key, 0), at_ns)
        if self.part[key] == self.all_sources[c]:
            self.whole_ns[key] = min(self.part_ns[key], self.whole_ns.get(key, self.part_ns[key]))

    def _missing(self, c: int, part: int) -> list[int]:
        return [rank for rank in sorted(set(self.chunks[c].sources)) if not part >> rank & 1]

    def _resources(self) -> Iterator[str]:
        """Yield the sends that hold a resource at the same time as another."""
        # What holds a resource for no time at all collides with nothing.
        send = np.flatnonzero((self.link >= 0) & (self.busy_until > self.start))
        held = [link.resources for link in self.topology.links]
        lengths = np.array([len(of) for of in held], dtype=np.int64)
        begins = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        resources = np.array(list(itertools.chain.from_iterable(held)), dtype=np.int64)
        many = lengths[self.link[send]]
        turn = np.arange(int(many.sum())) - np.repeat(np.cumsum(many) - many, many)
        resource = resources[np.repeat(begins[self.link[send]], many) + turn]
        send = np.repeat(send, many)
        order = np.argsort(resource, kind="stable")
        resource, send = resource[order], send[order]
        until = _highest_so_far(resource, self.busy_until[send])
        # The first of those that hold it longest so far.
        longest = np.concatenate([[True], (resource[1:] != resource[:-1]) | (until[1:] > until[:-1])])[: len(send)]
        holder = np.maximum.accumulate(np.where(longest, np.arange(len(send)), 0)) if len(send) else send
        clash = np.flatnonzero((resource[1:] == resource[:-1]) & (until[:-1] > self.start[send[1:]])) + 1
        for place in clash[np.argsort(send[clash], kind="stable")].tolist():
            index = int(send[holder[place - 1]])
            before, after, name = self.sends[index], self.sends[send[place]], self.topology.resources[resource[place]]
            yield (
                f"{name} is held until {self.busy_until[index]} ns by the send from rank {before.source} to "
                f"{before.target}, and from {after.start_ns} ns by that from {after.source} to {after.target}"
            )

    def _postcondition(self, keys: IntArray, times: IntArray) -> tuple[int, list[str]]:
        """Find when the last target holds its chunks, and the targets that do not; ``keys`` ascend: (chunk, rank)."""
        ranks = self.topology.rank_count
        every = itertools.chain.from_iterable(
            (c * ranks + rank for rank in chunk.targets) for c, chunk in enumerate(self.chunks)
        )
        wanted = np.fromiter(every, np.int64)
        place = np.minimum(np.searchsorted(keys, wanted), max(0, len(keys) - 1))
        there = keys[place] == wanted if len(keys) else np.zeros(len(wanted), dtype=np.bool_)
        missing = []
        for index, rank in (divmod(key, ranks) for key in wanted[~there].tolist()):
            if (index, rank) in self.part:
                parts = self._missing(index, self.part[index, rank])
                missing.append(f"rank {rank} ends with chunk {index} without the parts of ranks {parts}")
            else:
                missing.append(f"rank {rank} ends without chunk {index}")
        return int(times[place[there]].max(initial=0)), missing


def _highest_so_far(group: IntArray, value: IntArray) -> IntArray:
    """Highest value up to each row among those of its group, [rows]; groups are one after another."""
    if not len(value):
        return value
    distinct, place = np.unique(value, return_inverse=True)
    number = np.cumsum(np.concatenate([[0], group[1:] != group[:-1]]))
    highest: IntArray = np.maximum.accumulate(number * len(distinct) + place.ravel()) - number * len(distinct)
    return distinct[highest]


def check_plan(problem: CollectiveProblem, plan: CollectivePlan) -> PlanCheck:
    """Judge every algorithm of a plan at its own size and against what the problem names, and the table.

    Raises:
        InputError: the plan belongs to another problem, or holds no algorithm (infeasible).
    """
    expect_problem(plan.problem_sha256, problem.sha256)
    if not plan.algorithms:
        raise InputError("status", plan.status, "holds no algorithm to check", "Give a plan that was found feasible.")
    violations, named = _table(problem, plan.algorithms), named_chunk_counts(problem)
    checks: list[CollectiveCheck] = []
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
    """List what is wrong with the table as a whole."""
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


def _figures(algorithm: Algorithm, verdict: CollectiveCheck) -> list[str]:
    """List the figures of an algorithm that its replay contradicts."""
    violations = []
    if algorithm.time_ns != verdict.time_ns:
        violations.append(f"is said to take {algorithm.time_ns} ns, but takes {verdict.time_ns}")
    for name in ("bound_ns", "throughput_bound_ns"):
        bound_ns = getattr(algorithm, name)
        if bound_ns > verdict.time_ns:
            violations.append(f"its {name} of {bound_ns} is above its time of {verdict.time_ns} ns")
    return violations
