"""Verdicts of the checker on a schedule, or on a plan's whole table, and the timelines that they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.models.collective.plan import Send
from loadmaster.models.topologies.topology import Topology

IntArray = NDArray[np.int64]


class Journey(NamedTuple):
    """One send in the replay: its link's index, until when it holds the link's resources, and when it has arrived."""

    send: Send
    link: int
    busy_until_ns: int
    arrives_ns: int


@dataclass(frozen=True, eq=False)
class CollectiveCheck:
    """The verdict on one schedule.

    Attributes:
        violations: in words, empty when ok.
        topology: the problem's, as far as its sketch leaves it; the links and resources of the journeys are of this
            one.
        time_ns: when the last chunk is where it must be; of chunks that never get there nothing is counted.
        sends: those over links that exist, by start, then source, then target.
        links, busy_until_ns, arrives_ns: of each of them, see :class:`Journey`.
        held, held_ns: chunk * ranks + rank of every rank that ever holds a chunk whole, ascending, and since when.
    """

    ok: bool
    violations: tuple[str, ...]
    topology: Topology = field(repr=False)
    time_ns: int
    sends: tuple[Send, ...] = field(repr=False)
    links: IntArray = field(repr=False)
    busy_until_ns: IntArray = field(repr=False)
    arrives_ns: IntArray = field(repr=False)
    held: IntArray = field(repr=False)
    held_ns: IntArray = field(repr=False)

    @cached_property
    def journeys(self) -> tuple[Journey, ...]:
        """The sends with what the replay found of them."""
        columns = (of.tolist() for of in (self.links, self.busy_until_ns, self.arrives_ns))
        return tuple(map(Journey, self.sends, *columns))

    @cached_property
    def arrivals(self) -> Mapping[tuple[int, int], int]:
        """Time when each rank first holds each chunk whole: (chunk, rank) -> ns, for every rank that ever does."""
        ranks = self.topology.rank_count
        return {divmod(key, ranks): ns for key, ns in zip(self.held.tolist(), self.held_ns.tolist(), strict=True)}

    @cached_property
    def by_link(self) -> Mapping[int, tuple[Journey, ...]]:
        """The journeys over each link in use, by start."""
        found: dict[int, list[Journey]] = {}
        for journey in self.journeys:
            found.setdefault(journey.link, []).append(journey)
        return {link: tuple(found[link]) for link in sorted(found)}

    @cached_property
    def by_resource(self) -> Mapping[int, tuple[Journey, ...]]:
        """The journeys that hold each resource in use, by start."""
        found: dict[int, list[Journey]] = {}
        for journey in self.journeys:
            for resource in self.topology.links[journey.link].resources:
                found.setdefault(resource, []).append(journey)
        return {resource: tuple(found[resource]) for resource in sorted(found)}


@dataclass(frozen=True)
class PlanCheck:
    """The verdict on a plan. A violation of an algorithm names its size; others are of the table. ``algorithms``: the
    verdict on each algorithm of the table whose size and chunk count make an instance, in order."""

    ok: bool
    violations: tuple[str, ...]
    algorithms: tuple[CollectiveCheck, ...] = field(repr=False)

    @property
    def objective(self) -> float:
        """The times of all algorithms together, in us."""
        return sum(check.time_ns for check in self.algorithms) / 1e3

    def summary(self) -> dict[str, object]:
        """Summarize the check for the plan document."""
        return {
            "ok": self.ok,
            "algorithms": len(self.algorithms),
            "sends": sum(len(check.sends) for check in self.algorithms),
            "times_ns": [check.time_ns for check in self.algorithms],
        }
