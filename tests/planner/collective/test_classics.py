"""The classic algorithms: right on any network that allows them, and never beaten by the same made by hand."""

from __future__ import annotations

import pytest

from loadmaster.models.collective.bounds import lower_bound
from loadmaster.models.collective.checker import check
from loadmaster.models.collective.collectives import forms_of, instance_of
from loadmaster.models.collective.problem import Collective, CollectiveProblem, Sketch
from loadmaster.models.topologies.presets import preset
from loadmaster.models.topologies.topology import Topology
from loadmaster.planner import PlanOptions, plan
from loadmaster.planner.collective.classics import classics, schedule
from tests.models.collective import classics_by_hand as by_hand
from tests.models.collective.message_replay import replay
from tests.models.collective.tiny import EVEN, problem, ring, switched

ROOTED = ("broadcast", "reduce", "scatter", "gather")


def posed(topology: Topology, collective: Collective, size_bytes: int, **more: object) -> CollectiveProblem:
    return problem(topology, collective, size_bytes, root=1 if collective in ROOTED else None, **more)


@pytest.mark.parametrize("collective", EVEN)
@pytest.mark.parametrize(
    "machine",
    [ring(5, latency_ns=30), switched(1, 6), switched(2, 2), switched(3, 3, latency_ns=9), preset("torus", 6)],
)
def test_every_classic_is_right_on_every_network(machine: Topology, collective: Collective) -> None:
    whole = posed(machine, collective, machine.rank_count * 120)
    for form in forms_of(whole):
        instance = instance_of(whole, whole.sizes_bytes[0], 2, form)
        bound_ns = lower_bound(instance).ns
        for classic in classics(machine):
            sends = schedule(instance, classic)
            assert sends is not None
            verdict = check(instance, sends)
            assert verdict.ok, (classic.name, form, verdict.violations[:2])
            assert verdict.time_ns >= bound_ns
            assert not replay(instance, sends, range(1))


def test_each_is_what_its_name_says() -> None:
    """As long as the same by hand, on a machine of one port each way."""
    machine = switched(1, 8, latency_ns=20)
    for collective, name, steps in (
        ("allgather", "doubling", by_hand.doubling(8)),
        ("allgather", "ring", by_hand.ring(8)),
        ("alltoall", "direct", by_hand.exchange(8)),
        ("alltoall", "doubling", by_hand.bruck_exchange(8)),
    ):
        instance = instance_of(posed(machine, collective, 64 * 8), 64 * 8, 1)  # type: ignore[arg-type]
        found = schedule(instance, next(c for c in classics(machine) if c.name == name))
        assert found is not None
        assert check(instance, found).time_ns <= check(instance, by_hand.copied(instance, steps)).time_ns
    sums = instance_of(posed(machine, "allreduce", 64 * 8), 64 * 8, 1)
    for name, made in (("doubling", by_hand.halved_and_doubled), ("ring", by_hand.ring_reduced_and_gathered)):
        found = schedule(sums, next(c for c in classics(machine) if c.name == name))
        assert found is not None
        assert check(sums, found).time_ns <= check(sums, made(sums)).time_ns


def test_relays_of_a_sketch_are_kept_to() -> None:
    whole = posed(switched(2, 2), "allgather", 400, sketch=Sketch(internode={0: (0,)}, relays={0: 0, 1: 0}))
    instance = instance_of(whole, 400, 1)
    for classic in classics(instance.topology):
        sends = schedule(instance, classic)
        assert sends is not None and check(instance, sends).ok


def test_where_a_rank_cannot_be_reached_there_is_none() -> None:
    instance = instance_of(posed(switched(2, 2, nic=False), "allgather", 400), 400, 1)
    assert all(schedule(instance, classic) is None for classic in classics(instance.topology))


@pytest.mark.slow
@pytest.mark.parametrize(("size_bytes", "most_ns"), [(4 << 10, 3270), (32 << 10, 6072)])
def test_an_allreduce_is_planned_as_well_as_by_hand(size_bytes: int, most_ns: int) -> None:
    """Recursive doubling of the inputs for few bytes, halving and doubling for more."""
    found = plan(posed(preset("dgx2", 1), "allreduce", size_bytes), PlanOptions(time_limit_s=10.0))
    (algorithm,) = found.algorithms
    assert algorithm.bound_ns <= algorithm.time_ns <= most_ns
    assert algorithm.form == ("gather" if size_bytes < 8 << 10 else "direct")
