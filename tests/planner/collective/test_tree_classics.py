"""Classic algorithms whose chunks follow one another: right on every network, as fast as theory says on some."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.models.collective.checker import check
from loadmaster.models.collective.collectives import ROOTED, forms_of, instance_of
from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.plan import Send
from loadmaster.models.collective.problem import Collective, CollectiveProblem, Sketch
from loadmaster.models.topologies.presets import preset
from loadmaster.models.topologies.topology import Topology
from loadmaster.planner.collective.grids import Dimension, Shape, node_grid, shapes_of, torus_grids, tree
from loadmaster.planner.collective.queueing import queued
from loadmaster.planner.collective.trees import TreeClassic, messages, tree_classics
from tests.models.collective.message_replay import replay
from tests.models.collective.test_collective_bounds import topologies
from tests.models.collective.tiny import EVEN, problem, ring, switched


def posed(topology: Topology, collective: Collective, size_bytes: int, **more: object) -> CollectiveProblem:
    return problem(topology, collective, size_bytes, root=1 if collective in ROOTED else None, **more)


def made(instance: Instance, classic: TreeClassic) -> tuple[Send, ...] | None:
    found = messages(instance, classic)
    return None if found is None else queued(instance, found.sends, found.turns)


def named(topology: Topology, name: str, *, rooted: bool = False) -> TreeClassic:
    return next(classic for classic in tree_classics(topology, rooted=rooted) if classic.name == name)


@pytest.mark.slow
@pytest.mark.parametrize("collective", EVEN)
@pytest.mark.parametrize(
    "machine",
    [ring(5, latency_ns=30), switched(1, 8), switched(2, 2), switched(3, 3, latency_ns=9), preset("torus", 12)],
)
def test_every_one_is_right_on_every_network(machine: Topology, collective: Collective) -> None:
    whole = posed(machine, collective, machine.rank_count * 120)
    for form in forms_of(whole):
        instance = instance_of(whole, whole.sizes_bytes[0], 4, form)
        for classic in tree_classics(machine, rooted=collective in ROOTED):
            sends = made(instance, classic)
            assert sends is not None
            verdict = check(instance, sends)
            assert verdict.ok, (classic.name, form, verdict.violations[:2])
            assert not replay(instance, sends, range(1))


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(topologies(), st.sampled_from(EVEN), st.integers(1, 3))
def test_every_one_is_right_on_random_networks(machine: Topology, collective: Collective, count: int) -> None:
    whole = posed(machine, collective, machine.rank_count * 6)
    for form in forms_of(whole):
        instance = instance_of(whole, whole.sizes_bytes[0], count, form)
        for classic in tree_classics(machine, rooted=collective in ROOTED):
            sends = made(instance, classic)
            assert sends is not None and check(instance, sends).ok, classic.name


@pytest.mark.parametrize("size", [2, 3, 4, 7, 8])
def test_every_shape_is_a_tree_from_every_place(size: int) -> None:
    dimension = Dimension(size, 3)
    everyone = {1 + 3 * place for place in range(size)}
    for shape in shapes_of(dimension, get_args(Shape)):
        for root in everyone:
            for turn in range(2 * size):
                has = {root}
                for a, b in tree(dimension, shape, root, turn):
                    assert a in has and b not in has
                    has.add(b)
                assert has == everyone


def test_disjoint_trees_broadcast_in_the_fewest_steps() -> None:
    """k chunks on 2^d ranks of one port each: the last leaves the root after k - 1 steps, and is there d + 1 later."""
    machine = switched(1, 16, message_ns=0, gbps=1.0)
    instance = instance_of(posed(machine, "broadcast", 40 * 10), 40 * 10, 40)
    sends = made(instance, named(machine, "disjoint", rooted=True))
    assert sends is not None and check(instance, sends).time_ns <= (40 - 1 + 4 + 1) * 10


def test_an_alltoall_on_a_ring_keeps_all_wires_busy() -> None:
    """Distances 1 to 8 either way around 16 ranks, half of those of 8 each way: 32 chunks over each wire."""
    machine = ring(16, message_ns=0, latency_ns=5)
    instance = instance_of(posed(machine, "alltoall", 16 * 100), 16 * 100, 1)
    sends = made(instance, named(machine, "both ways"))
    assert sends is not None and check(instance, sends).time_ns == 32 * 100 + 5


def test_every_wire_of_a_torus_works_alike() -> None:
    """In turns every rank begins along every dimension; AllToAll on 4 x 4 puts 8 chunks on each wire."""
    machine = preset("torus", 16)
    instance = instance_of(posed(machine, "alltoall", 16 * 390), 16 * 390, 1)
    sends = made(instance, named(machine, "both ways, by dimensions in turns"))
    assert sends is not None
    loads = [0] * len(machine.links)
    for send in sends:
        loads[machine.link_between[send.source, send.target]] += 1
    assert set(loads) == {8}


def test_a_scattered_broadcast_leaves_the_root_once() -> None:
    """Each chunk over one link of the root; every NIC of a node brings its share in."""
    machine = preset("hgx-h200", 2)
    instance = instance_of(problem(machine, "broadcast", 64 * 390, root=3), 64 * 390, 64)
    for name in ("scattered, direct between nodes, then direct", "scattered, chain between nodes, then chain"):
        sends = made(instance, named(machine, name, rooted=True))
        assert sends is not None and check(instance, sends).ok
        left = [send for send in sends if send.source == 3]
        assert len([send for send in left if send.target < 8]) == 64
        entered = [send.target % 8 for send in sends if send.source < 8 <= send.target]
        assert sorted(entered) == sorted(list(range(8)) * 8)


def test_relays_of_a_sketch_are_kept_to() -> None:
    whole = posed(switched(2, 2), "allgather", 400, sketch=Sketch(internode={0: (0,)}, relays={0: 0, 1: 0}))
    instance = instance_of(whole, 400, 1)
    for classic in tree_classics(instance.topology, rooted=False):
        sends = made(instance, classic)
        assert sends is not None and check(instance, sends).ok


def test_where_a_rank_cannot_be_reached_there_is_none() -> None:
    instance = instance_of(posed(switched(2, 2, nic=False), "allgather", 400), 400, 1)
    assert all(messages(instance, classic) is None for classic in tree_classics(instance.topology, rooted=False))


def test_grids_are_those_of_the_machine() -> None:
    assert [[d.size for d in grid] for grid in torus_grids(preset("torus", 12))] == [[4, 3]]
    assert not list(torus_grids(ring(6))) and not list(torus_grids(switched(1, 8)))
    grid = node_grid(switched(3, 2))
    assert grid == (Dimension(2, 1), Dimension(3, 2))
    assert node_grid(switched(1, 4)) is None
