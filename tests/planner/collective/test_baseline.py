"""The portfolio of classic algorithms: the most promising first, and none that may win left out."""

from __future__ import annotations

from typing import Any

import pytest

from loadmaster.models.collective.collectives import ROOTED, instance_of
from loadmaster.models.collective.plan import Form
from loadmaster.models.collective.problem import Collective, CollectiveProblem
from loadmaster.models.topologies.presets import preset
from loadmaster.models.topologies.topology import Topology
from loadmaster.planner import PlanOptions, plan
from loadmaster.planner.collective.baseline import Baseline, part_counts
from loadmaster.planner.collective.prune import finish_ns
from loadmaster.planner.collective.queueing import queued
from loadmaster.planner.collective.trees import Messages, TreeClassic, messages, tree_classics
from tests.models.collective.tiny import problem, ring, switched


class Offers:
    """Makes every algorithm that is offered, and keeps its time."""

    def __init__(self, topology: Topology, collective: Collective, size_bytes: int, **more: Any) -> None:
        root = 0 if collective in ROOTED else None
        self.problem: CollectiveProblem = problem(topology, collective, size_bytes, root=root, **more)
        self.size_bytes = size_bytes
        self.seen: dict[tuple[str, Form, int], int] = {}
        self.baseline = Baseline(
            self.problem, size_bytes, lambda form, count: instance_of(self.problem, size_bytes, count, form)
        )

    def offer(self, classic: TreeClassic, form: Form, count: int, made: Messages | None = None) -> int | None:
        instance = instance_of(self.problem, self.size_bytes, count, form)
        assert made is None or made == messages(instance, classic)
        made = made or messages(instance, classic)
        sends = None if made is None else queued(instance, made.sends, made.turns)
        if sends is None:
            return None
        self.seen[classic.name, form, count] = finish_ns(instance, sends)
        return self.seen[classic.name, form, count]

    def everything(self) -> int:
        """The best of all algorithms, forms and numbers of chunks."""
        rooted = self.problem.collective in ROOTED
        forms: tuple[Form, ...] = ("direct", "gather") if self.problem.collective == "allreduce" else ("direct",)
        found = [
            self.offer(classic, form, count)
            for classic in tree_classics(self.problem.topology, rooted=rooted)
            for form in forms
            for count in part_counts(self.problem, self.size_bytes, form)
        ]
        return min(ns for ns in found if ns is not None)


@pytest.mark.parametrize(
    ("topology", "collective", "size_bytes", "counts"),
    [
        (preset("torus", 6), "allreduce", 6 << 14, (1, 4, 16)),
        (preset("hgx-h200", 2), "broadcast", 1 << 20, (4, 16)),
        (switched(2, 3, latency_ns=500), "allgather", 6 << 10, (1, 2, 4, 8)),
        (ring(6, latency_ns=50), "alltoall", 36 << 8, (1, 2, 4)),
    ],
)
def test_the_search_comes_near_the_best_of_all(
    topology: Topology, collective: Collective, size_bytes: int, counts: tuple[int, ...]
) -> None:
    offers = Offers(topology, collective, size_bytes, chunk_counts=counts)
    offers.baseline.search(offers.offer, None, lambda: False)
    found, tried = min(offers.seen.values()), len(offers.seen)
    best = offers.everything()
    assert found <= 1.02 * best
    assert tried < len(offers.seen)


def test_the_first_is_there_whatever_the_time_and_the_search_goes_on_where_it_stopped() -> None:
    offers = Offers(switched(2, 3), "allgather", 6 << 5)
    offers.baseline.first(offers.offer)
    assert len(offers.seen) == 1
    offers.baseline.search(offers.offer, None, lambda: True)
    assert len(offers.seen) == 1
    offers.baseline.search(offers.offer, None, lambda: len(offers.seen) >= 3)
    assert len(offers.seen) == 3
    offers.baseline.search(offers.offer, None, lambda: False)
    names = {name for name, _, _ in offers.seen}
    assert len(names) > 3


def test_what_is_far_from_the_best_is_not_made() -> None:
    offers = Offers(switched(2, 4), "allgather", 8 << 10)
    offers.baseline.search(offers.offer, 1, lambda: False)
    assert not offers.seen


def test_parts_divide_the_size_or_are_those_named() -> None:
    whole = problem(switched(2, 2), "allreduce", 4 * 24)
    assert list(part_counts(whole, 4 * 24, "direct")) == [1, 2, 4, 8]
    assert list(part_counts(whole, 4 * 24, "gather")) == [1, 2, 4, 8, 16, 32]
    assert list(part_counts(problem(switched(2, 2), "allgather", 400, chunk_counts=(6, 3)), 400, "direct")) == [3, 6]


@pytest.mark.parametrize("collective", ["allgather", "allreduce", "broadcast"])
def test_a_plan_is_there_however_short_the_time(collective: Collective) -> None:
    whole = problem(preset("hgx-h200", 4), collective, 32 << 10, root=0 if collective in ROOTED else None)
    found = plan(whole, PlanOptions(time_limit_s=0.1))
    assert found.algorithms and found.check["ok"]
