"""Rows of bars that show who sends when: what the Gantt charts of the page and of the picture draw.

A row is a resource; its bars cannot overlap, since it carries one message at a time. Where there are more resources
than anyone reads, a row is all of one sort in a node, cut into slices of time: the more of them busy, the stronger the
bar. Colours say whose data it is, or which part of it. Between the end of a bar and its arrival the message is on its
way and holds nothing.
"""

from __future__ import annotations

import math
import re
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from loadmaster.models.collective.collectives import chunks_of
from loadmaster.models.collective.instance import Chunk
from loadmaster.models.collective.plan import Algorithm
from loadmaster.models.collective.problem import CollectiveProblem
from loadmaster.models.collective.verdict import CollectiveCheck, Journey
from loadmaster.models.topologies.topology import Topology
from loadmaster.models.units import show_bytes

LARGEST_ROWS = 100
LONGEST_LABEL = 32
SLICES = 240
# The node of what several nodes share: after all others.
NETWORK = sys.maxsize


@dataclass(frozen=True)
class Bar:
    """A stretch of time.

    Attributes:
        share: of the row's resources that are busy, 0 to 1.
        owner: the rank whose data it mostly is, or the part of the data (see :func:`owner_word`).
        arrives_ns: when what was sent is there; None where the bar is not a single send.
    """

    start_ns: float
    end_ns: float
    share: float
    owner: int
    words: str
    arrives_ns: float | None = None

    @property
    def opacity(self) -> float:
        """Opacity to paint the bar with; a small share is still seen."""
        return 0.15 + 0.85 * math.sqrt(self.share)


@dataclass(frozen=True)
class TimelineRow:
    """Bars by time, without overlap."""

    label: str
    bars: tuple[Bar, ...]


def timeline(problem: CollectiveProblem, algorithm: Algorithm, check: CollectiveCheck) -> tuple[TimelineRow, ...]:
    """The rows of one algorithm, resources in the topology's order."""
    # What the sketch has left: links and resources of the replay.
    topology = check.topology
    chunks = chunks_of(problem, algorithm.size_bytes, algorithm.chunk_count, algorithm.form)
    owners = owners_of(chunks, topology.rank_count)
    held = check.by_resource
    places = _places(topology)
    order = sorted(held, key=lambda resource: places[resource])
    if len(held) <= LARGEST_ROWS:
        return tuple(
            TimelineRow(_short(topology.resources[resource]), tuple(_bar(j, chunks, owners) for j in held[resource]))
            for resource in order
        )
    groups: dict[str, list[Sequence[Journey]]] = defaultdict(list)
    labels = _labels(places)
    for resource in order:
        groups[labels[resource]].append(held[resource])
    word = owner_word(problem, algorithm)
    return tuple(
        TimelineRow(f"{_short(label)} ({len(members)})", _slices(members, owners, word, check.time_ns))
        for label, members in groups.items()
    )


def owners_of(chunks: Sequence[Chunk], rank_count: int) -> list[int]:
    """The rank, or part, that each chunk is coloured after: the rank that is its source where sources differ, else its
    target where targets do, else its part of the data, of as many parts as ranks."""
    return _ranks_of(chunks) or [n * rank_count // len(chunks) for n in range(len(chunks))]


def owner_word(problem: CollectiveProblem, algorithm: Algorithm) -> str:
    """The word for what colours tell apart: ``rank`` or ``part``. Part r of an AllReduce is rank r's."""
    chunks = chunks_of(problem, algorithm.size_bytes, algorithm.chunk_count, algorithm.form)
    return "part" if problem.collective != "allreduce" and _ranks_of(chunks) is None else "rank"


def _ranks_of(chunks: Sequence[Chunk]) -> list[int] | None:
    for ends in ([chunk.sources for chunk in chunks], [chunk.targets for chunk in chunks]):
        if all(len(ranks) == 1 for ranks in ends) and len(set(ends)) > 1:
            return [ranks[0] for ranks in ends]
    return None


def _short(name: str) -> str:
    """Cut a name: its author chose it, and a label has to leave room for the chart."""
    return name if len(name) <= LONGEST_LABEL else f"{name[: LONGEST_LABEL - 3]}..."


def describe(journey: Journey, chunks: Sequence[Chunk]) -> str:
    """Describe a send: its ranks, its chunks and its bytes."""
    send = journey.send
    size_bytes = sum(chunks[c].size_bytes for c in send.chunks)
    numbers = ", ".join(map(str, send.chunks[:8])) + (", ..." if len(send.chunks) > 8 else "")
    what = "adds" if send.combines else "chunks"
    return f"{send.source} to {send.target}: {what} {numbers} ({show_bytes(size_bytes)})"


def _bar(journey: Journey, chunks: Sequence[Chunk], owners: Sequence[int]) -> Bar:
    send = journey.send
    return Bar(
        send.start_ns, journey.busy_until_ns, 1.0, owners[send.chunks[0]], describe(journey, chunks), journey.arrives_ns
    )


def _places(topology: Topology) -> list[tuple[int, str, tuple[int, ...]]]:
    """Places of the resources: the node (NETWORK where it is of several), the name without numbers, the numbers."""
    sources: list[set[int]] = [set() for _ in topology.resources]
    targets: list[set[int]] = [set() for _ in topology.resources]
    for link in topology.links:
        for resource in link.resources:
            sources[resource].add(topology.node_of[link.source])
            targets[resource].add(topology.node_of[link.target])
    found = []
    for name, ends in zip(topology.resources, zip(sources, targets, strict=True), strict=True):
        # Of two nodes, what goes in is its target's.
        nearest = reversed(ends) if name.endswith(" in") else ends
        node = next((next(iter(nodes)) for nodes in nearest if len(nodes) == 1), NETWORK)
        sort = " ".join(re.sub(r"[\d.:>-]+", " ", name).split())
        found.append((node, sort, tuple(map(int, re.findall(r"\d+", name)))))
    return found


def _labels(places: Sequence[tuple[int, str, tuple[int, ...]]]) -> list[str]:
    """Labels of the resources: node and sort; the node alone where that makes too many rows."""
    nodes = ["network" if node == NETWORK else f"node {node}" for node, _, _ in places]
    fine = [f"{node} {sort}".strip() for node, (_, sort, _) in zip(nodes, places, strict=True)]
    for labels in (fine, nodes):
        if len(set(labels)) <= LARGEST_ROWS:
            return labels
    return ["all resources"] * len(places)


def _slices(members: Sequence[Sequence[Journey]], owners: Sequence[int], word: str, time_ns: int) -> tuple[Bar, ...]:
    """Equal stretches of time, each with the share of it that members are busy; equal neighbours joined."""
    width = max(time_ns, 1) / SLICES
    busy_ns = [0.0] * SLICES
    by_owner: list[dict[int, float]] = [defaultdict(float) for _ in range(SLICES)]
    for journeys in members:
        for journey in journeys:
            start, end, owner = journey.send.start_ns, journey.busy_until_ns, owners[journey.send.chunks[0]]
            for n in range(int(start / width), min(SLICES, int(end / width) + 1)):
                overlap = min(end, (n + 1) * width) - max(start, n * width)
                if overlap > 0:
                    busy_ns[n] += overlap
                    by_owner[n][owner] += overlap
    bars: list[Bar] = []
    for n, busy in enumerate(busy_ns):
        if not busy:
            continue
        # Twentieths: neighbours that look the same are one bar.
        share = max(1, round(20 * busy / (width * len(members)))) / 20
        owner = max(by_owner[n], key=lambda rank: (by_owner[n][rank], -rank))
        last = bars[-1] if bars else None
        if last is not None and (last.share, last.owner) == (share, owner) and last.end_ns == n * width:
            bars[-1] = Bar(last.start_ns, (n + 1) * width, share, owner, last.words)
        else:
            words = f"{share:.0%} of {len(members)} busy, mostly with data of {word} {owner}"
            bars.append(Bar(n * width, (n + 1) * width, share, owner, words))
    return tuple(bars)
