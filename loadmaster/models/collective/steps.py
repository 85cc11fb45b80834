r"""Schedules in few steps: which chunks each link carries in each of them, as a mixed-integer program.

Where a message costs about what its bytes do, chunks should travel together, and how long a step takes depends on the
link with the longest message. So the program has steps instead of times: in each, a link sends one message at most, of
chunks that came in steps before.

Source: [SCCL21], its k-synchronous schedules; here a step is as long as what it carries.

Sets: chunks c (copies), ranks r, links k with source and target, those that c may use; resources p; steps s = 1 .. R.
Pairs (c, k) in s are left out where c cannot be at the source of k by then, or cannot get from there to a target in the
steps that are left, and where k leads to a source of c.

Variables:
    length[s]      continuous
    sent[c,k,s]    binary
    used[k,s]      binary
Under symmetries there is one variable for each orbit, and equal rows are there once
(:mod:`loadmaster.models.collective.symmetry`).

Minimize sum of length[s]
subject to
(T1)  length[s] >= latency_p + sum of message_ns used[k,s] + sum of bytes / gbps sent[c,k,s] over the links k that hold
      p, for every resource p and step s; latency_p is the longest of those links - `last_as_long_as_its_resources`
(T2)  used[k,s] >= sent[c,k,s] - `use_what_carries`
(T3)  sent[c,k,s] <= sum of sent[c,k',s'] over links k' to the source of k and s' < s, where that is not a source of c -
      `send_what_came_before`
(T4)  a target that is not a source gets c once, another rank at most once: sum of sent[c,k,s] over links k to it is 1,
      or <= 1 - `arrive_once`

The program is a restriction (steps, R of them, symmetric routes): its optimum is not a bound. Where no link holds more
than one resource, its messages, started as early as their order allows, are done no later than the sum says; links that
hold two may wait for one another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadmaster.errors import InputError
from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.plan import Send
from loadmaster.models.collective.reach import NO_WAY, fewest_hops
from loadmaster.models.collective.symmetry import Aliases, holders_of
from loadmaster.solvers.program import IntArray, Program, ProgramBuilder
from loadmaster.solvers.solution import Solution


class StepVariables:
    """The variables of one program, and the sets that its rows are written from. ``steps``: R. ``triples``: (c, k, s)
    of every ``sent``, s from 0. ``length`` [steps] and ``sent`` [triples] are columns; ``used``: (k, s) to column.
    ``of_pair``: (c, rank) to the places of triples into it, for the first chunk of each orbit."""

    def __init__(self, b: ProgramBuilder, instance: Instance, steps: int, usable: Sequence[Sequence[int]]) -> None:
        self.instance, self.steps = instance, steps
        self.triples = _triples(instance, steps, usable)
        aliases, links = Aliases(instance), len(instance.topology.links)
        chunk, link, step = np.array(self.triples, dtype=np.int64).reshape(-1, 3).T
        self.first = aliases.chunks
        self.length = b.columns("length", steps, cost=1.0)
        orbit = np.unique(aliases.of_links(chunk, link) * steps + step, return_inverse=True)[1].ravel()
        count = int(orbit.max(initial=-1)) + 1
        self.sent: IntArray = b.columns("sent", count, upper=1.0, integer=True)[orbit]
        first, lane = aliases.links, np.unique(aliases.links[link] * steps + step)
        place = np.full(links * steps, -1, dtype=np.int64)
        place[lane] = b.columns("used", len(lane), upper=1.0, integer=True)
        self.used = {(k, s): int(place[first[k] * steps + s]) for _, k, s in self.triples}
        self.of_pair: dict[tuple[int, int], list[int]] = defaultdict(list)
        for p, (c, k, _) in enumerate(self.triples):
            if self.first[c] == c:
                self.of_pair[c, instance.topology.links[k].target].append(p)


@dataclass(frozen=True)
class StepSchedule:
    """The program, whose objective is in nanoseconds, and the way back from its points to schedules."""

    program: Program
    variables: StepVariables

    def schedule(self, solution: Solution) -> tuple[Send, ...]:
        """The messages of a solution, each at the start of its step. Raises ValueError: it has no incumbent."""
        v = self.variables
        sent, lengths = solution.block(v.sent), solution.block(v.length)
        together: dict[tuple[int, int], list[int]] = defaultdict(list)
        for (c, k, s), value in zip(v.triples, sent.tolist(), strict=True):
            if value > 0.5:
                together[s, k].append(c)
        starts = np.concatenate([[0], np.ceil(np.cumsum(lengths))]).astype(np.int64)
        links = v.instance.topology.links
        found = [
            Send(int(starts[s]), links[k].source, links[k].target, tuple(sorted(chunks)))
            for (s, k), chunks in together.items()
        ]
        return tuple(sorted(found, key=lambda send: (send.start_ns, send.source, send.target)))


def least_steps(instance: Instance, usable: Sequence[Sequence[int]]) -> int:
    """The fewest steps that all chunks can get to their targets in, whatever they cost; 0 where some cannot at all."""
    most = 0
    for c, chunk in enumerate(instance.chunks):
        ahead = fewest_hops(instance, usable[c], chunk.sources, backwards=False) if chunk.size_bytes else []
        most = max([most, *(ahead[r] for r in chunk.targets if ahead)])
    return most if most < NO_WAY else 0


def formulate(instance: Instance, steps: int, usable: Sequence[Sequence[int]] | None = None) -> StepSchedule:
    """The program of an instance; ``usable``: per chunk, its links; None: the instance's. ``InputError``: it
    combines."""
    if instance.combines:
        raise InputError("chunks", "sums", "are not sent in steps", "Give the reversed instance.")
    b = ProgramBuilder()
    v = StepVariables(b, instance, steps, usable or instance.usable_links)
    last_as_long_as_its_resources(b, v)
    use_what_carries(b, v)
    send_what_came_before(b, v)
    arrive_once(b, v)
    return StepSchedule(b.build(), v)


def last_as_long_as_its_resources(b: ProgramBuilder, v: StepVariables) -> None:
    """Add (T1): a step lasts as long as its resources need."""
    links, chunks = v.instance.topology.links, v.instance.chunks
    carried: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
    for (c, k, s), column in zip(v.triples, v.sent.tolist(), strict=True):
        terms = carried[k, s]
        terms[column] = terms.get(column, 0.0) + chunks[c].size_bytes / links[k].gbps
        terms[v.used[k, s]] = float(links[k].message_ns)
    block, seen = b.row_list("last_as_long_as_its_resources"), set()
    for held in holders_of(v.instance.topology):
        latency_ns = float(max((links[k].latency_ns for k in held), default=0))
        for s in range(v.steps):
            together: dict[int, float] = defaultdict(float)
            for k in held:
                for column, ns in carried.get((k, s), {}).items():
                    together[column] += ns
            row = tuple(sorted(together.items()))
            if row and (row, latency_ns) not in seen:
                seen.add((row, latency_ns))
                columns, values = zip(*row, strict=True)
                block.add([int(v.length[s]), *columns], [1.0, *(-ns for ns in values)], lower=latency_ns)
    block.done()


def use_what_carries(b: ProgramBuilder, v: StepVariables) -> None:
    """Add (T2): a link that carries a chunk in a step is used in it."""
    pairs = {(v.used[k, s], column) for (_, k, s), column in zip(v.triples, v.sent.tolist(), strict=True)}
    used, sent = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2).T
    row = np.arange(len(used))
    b.rows("use_what_carries", len(row), [(row, used, 1), (row, sent, -1)], lower=0)


def send_what_came_before(b: ProgramBuilder, v: StepVariables) -> None:
    """Add (T3): a link carries what came in an earlier step."""
    block, seen = b.row_list("send_what_came_before"), set()
    for p, (c, k, s) in enumerate(v.triples):
        column, source = int(v.sent[p]), v.instance.topology.links[k].source
        if v.first[c] != c or source in v.instance.chunks[c].sources or column in seen:
            continue
        seen.add(column)
        terms: dict[int, float] = defaultdict(float)
        terms[column] = 1.0
        for before in v.of_pair.get((c, source), []):
            if v.triples[before][2] < s:
                terms[int(v.sent[before])] -= 1.0
        block.add(list(terms), list(terms.values()), upper=0.0)
    block.done()


def arrive_once(b: ProgramBuilder, v: StepVariables) -> None:
    """Add (T4): a chunk gets to each target once, and to other ranks at most once."""
    block = b.row_list("arrive_once")
    chunks = v.instance.chunks
    wanted = {
        (c, r)
        for c in range(len(chunks))
        if v.first[c] == c and chunks[c].size_bytes
        for r in set(chunks[c].targets).difference(chunks[c].sources)
    }
    for pair in sorted(wanted | set(v.of_pair)):
        terms: dict[int, float] = defaultdict(float)
        for p in v.of_pair.get(pair, []):
            terms[int(v.sent[p])] += 1.0
        block.add(list(terms), list(terms.values()), lower=float(pair in wanted), upper=1.0)
    block.done()


def _triples(instance: Instance, steps: int, usable: Sequence[Sequence[int]]) -> list[tuple[int, int, int]]:
    links, found = instance.topology.links, []
    known: dict[tuple[object, ...], list[tuple[int, int]]] = {}
    for c, chunk in enumerate(instance.chunks):
        if not chunk.size_bytes or set(chunk.targets) <= set(chunk.sources):
            continue
        alike = (chunk.sources, chunk.targets, id(usable[c]))
        if alike not in known:
            ahead = fewest_hops(instance, usable[c], chunk.sources, backwards=False)
            left = fewest_hops(instance, usable[c], chunk.targets, backwards=True)
            known[alike] = [
                (k, s)
                for k in usable[c]
                if links[k].target not in chunk.sources
                for s in range(ahead[links[k].source], steps - left[links[k].target])
            ]
        found += [(c, k, s) for k, s in known[alike]]
    return found
