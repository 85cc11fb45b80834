"""What is proved of a problem holds for every form and every number of chunks: hand-made classics, and all of the tiny.

Plans here are written in their own document form and judged by the checker, whose word is final.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.models.collective.bounds import all_bounds
from loadmaster.models.collective.checker import check, check_plan
from loadmaster.models.collective.collectives import forms_of, instance_of
from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.plan import Algorithm, Form, Send
from loadmaster.models.collective.problem import Collective, CollectiveProblem
from loadmaster.models.collective.proof import prove
from loadmaster.models.kinds import read_plan, write_plan
from loadmaster.models.topologies.presets import preset
from loadmaster.models.topologies.topology import Link, Topology
from tests.models.collective import classics_by_hand as by_hand
from tests.models.collective.handmade import table
from tests.models.collective.optimal_schedules import Search
from tests.models.collective.schedules import random_schedule
from tests.models.collective.test_collective_bounds import clusters, topologies
from tests.models.collective.tiny import EVEN, problem, ring, switched

ROOTED = ("broadcast", "reduce", "scatter", "gather")


def posed(topology: Topology, collective: Collective, size_bytes: int) -> CollectiveProblem:
    return problem(topology, collective, size_bytes, root=0 if collective in ROOTED else None)


def expect_accepted(whole: CollectiveProblem, sends: tuple[Send, ...], form: Form, chunk_count: int = 1) -> int:
    """A plan of these sends, with the problem's own bounds, passes the checker; returns its time."""
    (size_bytes,) = whole.sizes_bytes
    proof = prove(whole, size_bytes)
    time_ns = check(instance_of(whole, size_bytes, chunk_count, form), sends).time_ns
    bounds = {"bound_ns": proof.bound.ns, "bound_by": proof.bound.by, "throughput_bound_ns": proof.throughput_ns}
    algorithm = Algorithm(size_bytes, chunk_count, form, sends, time_ns, **bounds)  # type: ignore[arg-type]
    plan = read_plan(write_plan(table(whole, algorithm)))
    verdict = check_plan(whole, plan)  # type: ignore[arg-type]
    assert verdict.ok, verdict.violations[:3]
    return time_ns


Classic = Callable[[Instance], tuple[Send, ...]]


def gathered(steps: by_hand.AllGather) -> Classic:
    return lambda instance: by_hand.copied(instance, steps(instance.topology.rank_count))


ALLREDUCE: list[tuple[str, Form, Classic]] = [
    ("recursive doubling", "gather", gathered(by_hand.doubling)),
    ("Bruck", "gather", gathered(by_hand.bruck)),
    ("ring of inputs", "gather", gathered(by_hand.ring)),
    ("halving and doubling", "direct", by_hand.halved_and_doubled),
    ("ring", "direct", by_hand.ring_reduced_and_gathered),
    ("tree", "direct", by_hand.reduced_by_a_tree_and_spread),
]


@pytest.mark.parametrize(
    ("size_bytes", "most_ns"), [pytest.param(4 << 10, 3270, marks=pytest.mark.slow), (32 << 10, 6072)]
)
def test_no_bound_of_an_allreduce_is_above_a_classic_on_a_dgx2(size_bytes: int, most_ns: int) -> None:
    whole = posed(preset("dgx2", 1), "allreduce", size_bytes)
    times = {
        name: expect_accepted(whole, classic(instance_of(whole, size_bytes, 1, form)), form)
        for name, form, classic in ALLREDUCE
    }
    assert min(times.values()) == most_ns


@pytest.mark.parametrize("size_bytes", [1 << 10, 1 << 16, 1 << 24])
@pytest.mark.parametrize("machine", [preset("hgx-h200", 1), switched(1, 8, latency_ns=30), switched(2, 1)])
def test_no_bound_of_an_allreduce_is_above_a_classic(machine: Topology, size_bytes: int) -> None:
    whole = posed(machine, "allreduce", size_bytes)
    for _, form, classic in ALLREDUCE:
        expect_accepted(whole, classic(instance_of(whole, size_bytes, 1, form)), form)


@pytest.mark.parametrize("size_bytes", [8 << 6, 8 << 12, 8 << 20])
@pytest.mark.parametrize("machine", [preset("hgx-h200", 1), preset("dgx2", 1), switched(1, 6, message_ns=700)])
def test_no_bound_of_what_is_copied_is_above_a_classic(machine: Topology, size_bytes: int) -> None:
    count = machine.rank_count
    size_bytes *= count
    cases: list[tuple[Collective, by_hand.Steps]] = [
        ("allgather", by_hand.bruck(count)),
        ("allgather", by_hand.ring(count)),
        ("broadcast", by_hand.tree(count, [0])),
        ("alltoall", by_hand.exchange(count)),
        ("alltoall", by_hand.bruck_exchange(count)),
    ]
    if count & (count - 1) == 0:
        cases.append(("allgather", by_hand.doubling(count)))
    for collective, steps in cases:
        whole = posed(machine, collective, size_bytes)
        expect_accepted(whole, by_hand.copied(instance_of(whole, size_bytes, 1), steps), "direct")


def test_rings_have_no_faster_bound_than_a_ring() -> None:
    for count, size_bytes in ((4, 4), (6, 600), (5, 5 << 20)):
        whole = posed(ring(count, latency_ns=20), "allgather", size_bytes)
        expect_accepted(whole, by_hand.copied(instance_of(whole, size_bytes, 1), by_hand.ring(count)), "direct")
        whole = posed(ring(count, latency_ns=20), "allreduce", size_bytes)
        expect_accepted(whole, by_hand.ring_reduced_and_gathered(instance_of(whole, size_bytes, 1)), "direct")


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.one_of(topologies(), clusters()), st.sampled_from(EVEN), st.sampled_from([1, 2, 3]), st.sampled_from([1, 6]))
def test_no_proof_is_above_the_best_of_any_form_and_number_of_chunks(
    topology: Topology, collective: Collective, most: int, part: int
) -> None:
    """The best of every form with 1, 2 and 3 chunks, by trying all schedules, as far as that goes."""
    size_bytes = 6 * part * topology.rank_count
    whole = posed(topology, collective, size_bytes)
    proof = prove(whole, size_bytes)
    for form, count in itertools.product(forms_of(whole), range(1, most + 1)):
        instance = instance_of(whole, size_bytes, count, form)
        # A message is any set of the chunks at a rank: of more than these there are too many.
        if len(instance.chunks) > 9:
            continue
        search = Search(instance, limit=400)
        if search.best_ns is not None:
            assert proof.of(form).bound.ns <= search.best_ns
            assert proof.bound.ns <= search.best_ns and proof.throughput_ns <= search.best_ns


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([switched(1, 5), switched(2, 3), switched(3, 2, latency_ns=60), switched(2, 2, message_ns=0)]),
    st.sampled_from(["allgather", "reduce_scatter", "allreduce", "alltoall", "broadcast", "reduce"]),
    st.integers(1, 12),
    st.integers(0, 1000),
)
def test_no_bound_of_divisible_chunks_is_above_a_schedule_of_some_number(
    topology: Topology, collective: Collective, count: int, seed: int
) -> None:
    size_bytes = 27720 * topology.rank_count
    whole = posed(topology, collective, size_bytes)
    instance = instance_of(whole, size_bytes, count)
    time_ns = check(instance, random_schedule(instance, seed)).time_ns
    for bound in all_bounds(instance_of(whole, size_bytes, 1), divisible=True):
        assert bound.ns <= time_ns, bound


@pytest.mark.parametrize("collective", ["allgather", "allreduce", "alltoall", "scatter"])
@pytest.mark.parametrize("machine", [switched(1, 4), switched(2, 2, latency_ns=40), ring(5, message_ns=10)])
def test_a_bound_of_any_number_of_chunks_is_none_above_that_of_one(machine: Topology, collective: Collective) -> None:
    for part in (12, 12 << 14):
        size_bytes = part * machine.rank_count
        whole = posed(machine, collective, size_bytes)
        open_ns = prove(whole, size_bytes).bound.ns
        for counts in ((1,), (3,), (1, 4)):
            assert open_ns <= prove(replace(whole, chunk_counts=counts), size_bytes).bound.ns


def test_chunks_of_an_allgather_follow_one_another_from_nics_to_ports() -> None:
    """Two nodes of eight, ports of 300 GB/s, NICs of 25: one chunk each is far from what four take."""
    links = []
    for a, b in itertools.permutations(range(16), 2):
        if a // 8 == b // 8:
            links.append(Link(a, b, 1000, 0, 300.0, (a, 16 + b), a // 8))
        elif a % 8 == b % 8:
            links.append(Link(a, b, 2600, 0, 25.0, (32 + a, 48 + b)))
    names = tuple(f"{what} {r}" for what in ("egress", "ingress", "nic out", "nic in") for r in range(16))
    topology = Topology("pair", tuple(r // 8 for r in range(16)), tuple(links), names)
    size_bytes = 16 * 64 << 20
    whole = posed(topology, "allgather", size_bytes)
    # 15 pieces over a port and a NIC together.
    throughput_ns = 15 * (64 << 20) / 325
    assert throughput_ns <= prove(whole, size_bytes).bound.ns <= 1.001 * throughput_ns
    assert prove(replace(whole, chunk_counts=(1,)), size_bytes).bound.ns > 1.37 * throughput_ns


def test_a_plan_has_the_number_of_chunks_that_the_problem_names() -> None:
    whole = replace(posed(switched(1, 4), "allgather", 96), chunk_counts=(2, 3))
    instance = instance_of(whole, 96, 1)
    sends = by_hand.copied(instance, by_hand.ring(4))
    algorithm = Algorithm(96, 1, "direct", sends, check(instance, sends).time_ns, 0, "", 0)
    verdict = check_plan(whole, table(whole, algorithm))
    assert not verdict.ok and "names 2, 3" in verdict.violations[0]
