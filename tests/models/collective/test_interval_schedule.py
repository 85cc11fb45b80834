"""Interval scheduling against every schedule there is, and against fixed orders."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadmaster.errors import InputError
from loadmaster.models.collective import intervals
from loadmaster.models.collective.checker import check
from loadmaster.models.collective.instance import Chunk, Instance, Symmetry
from loadmaster.models.collective.plan import Send
from loadmaster.models.collective.taccl.ordering import HEURISTICS, alone, order, sends, time_ns
from loadmaster.solvers.process import solve
from loadmaster.solvers.solution import SolveOptions, SolverStatus
from tests.models.collective.routes import random_routes, small_instances
from tests.models.collective.tiny import ring, switched

pytestmark = pytest.mark.slow  # CP-SAT in processes

few = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
EXACT = SolveOptions(gap=0.0, time_limit_s=60.0)


class Every:
    """The least time over all schedules of single chunks: hops in every sequence, each as early as it can then be."""

    def __init__(self, instance: Instance, most_ns: int) -> None:
        self.instance = instance
        self.best_ns = most_ns
        self.free_ns = [0] * len(instance.topology.resources)
        self.sent: set[tuple[int, int]] = set()
        self.ready_ns = {(c, r): 0 for c, chunk in enumerate(instance.chunks) for r in chunk.sources}
        self.missing = {
            (c, r)
            for c, chunk in enumerate(instance.chunks)
            for r in chunk.targets
            if (set(chunk.sources) - {r} if chunk.reduces else r not in chunk.sources)
        }
        self.parts = {(c, r): {r} for c, chunk in enumerate(instance.chunks) for r in chunk.sources}
        self.search(0, 0)

    def search(self, last_ns: int, end_ns: int) -> None:
        if end_ns >= self.best_ns:
            return
        if not self.missing:
            self.best_ns = end_ns
            return
        for c, chunk in enumerate(self.instance.chunks):
            for k in self.instance.usable_links[c]:
                link = self.instance.topology.links[k]
                u, v = link.source, link.target
                if (c, u) not in self.ready_ns:
                    continue
                if chunk.reduces:
                    may = (c, u) not in self.sent and (c, v) not in self.sent and u not in chunk.targets
                else:
                    may = (c, v) not in self.ready_ns
                start_ns = max(self.ready_ns[c, u], *(self.free_ns[r] for r in link.resources))
                # Every schedule can be written down by starts.
                if may and start_ns >= last_ns:
                    self.take(c, k, start_ns, end_ns)

    def take(self, c: int, k: int, start_ns: int, end_ns: int) -> None:
        chunk, link = self.instance.chunks[c], self.instance.topology.links[k]
        arrives_ns = start_ns + link.transfer_ns(chunk.size_bytes)
        kept = (list(self.free_ns), dict(self.ready_ns), set(self.missing), set(self.sent), dict(self.parts))
        for resource in link.resources:
            self.free_ns[resource] = start_ns + link.occupancy_ns(chunk.size_bytes)
        self.ready_ns[c, link.target] = max(arrives_ns, self.ready_ns.get((c, link.target), 0))
        if chunk.reduces:
            self.sent.add((c, link.source))
            self.parts[c, link.target] = self.parts.get((c, link.target), set()) | self.parts[c, link.source]
        if not chunk.reduces or self.parts[c, link.target] == set(chunk.sources):
            self.missing.discard((c, link.target))
        counts = arrives_ns if chunk.reduces or link.target in chunk.targets else 0
        self.search(start_ns, max(end_ns, counts))
        self.free_ns, self.ready_ns, self.missing, self.sent, self.parts = kept


def enough_ns(instance: Instance) -> int:
    """A schedule of random routes, one after another."""
    ordered = order(instance, random_routes(instance, 0))
    return time_ns(ordered, alone(ordered))


@few
@given(small_instances(most_chunks=2))
def test_joint_equals_every_schedule(instance: Instance) -> None:
    if sum(len(set(chunk.sources) ^ set(chunk.targets)) for chunk in instance.chunks) > 5:
        return
    horizon_ns = enough_ns(instance)
    formulation = intervals.formulate(instance, horizon_ns=horizon_ns)
    solution = solve(formulation.program, EXACT, solver="cpsat")
    assert solution.status is SolverStatus.OPTIMAL
    assert solution.objective == Every(instance, horizon_ns + 1).best_ns
    verdict = check(instance, formulation.schedule(solution))
    assert verdict.ok, verdict.violations
    assert verdict.time_ns == solution.objective


@pytest.mark.slow
@few
@given(small_instances(), st.integers(0, 99))
def test_fixed_routes_keep_to_them_and_beat_every_order(instance: Instance, seed: int) -> None:
    routes = random_routes(instance, seed)
    orders = [order(instance, routes, heuristic, backward=b) for heuristic in HEURISTICS for b in (False, True)]
    horizon_ns = min(time_ns(ordered, alone(ordered)) for ordered in orders)
    fixed = intervals.formulate(instance, horizon_ns=horizon_ns, routes=routes)
    solution = solve(fixed.program, EXACT, solver="cpsat")
    assert solution.objective is not None
    assert solution.objective <= horizon_ns
    found = fixed.schedule(solution)
    verdict = check(instance, found)
    assert verdict.ok, verdict.violations
    assert verdict.time_ns == solution.objective
    between = instance.topology.link_between
    for c in range(len(instance.chunks)):
        assert sorted(between[s.source, s.target] for s in found if c in s.chunks) == routes[c]
    joint = solve(intervals.formulate(instance, horizon_ns=horizon_ns).program, EXACT, solver="cpsat")
    assert joint.objective is not None
    assert joint.objective <= solution.objective


@few
@given(small_instances(), st.integers(0, 99))
def test_a_schedule_in_hand_is_a_feasible_start(instance: Instance, seed: int) -> None:
    ordered = order(instance, random_routes(instance, seed))
    formulation = intervals.formulate(instance, horizon_ns=time_ns(ordered, alone(ordered)))
    columns, values = formulation.start_from(sends(ordered, alone(ordered)))
    point = np.empty(formulation.program.column_count)
    point[columns] = values
    assert formulation.program.violation(point) == 0.0
    assert formulation.program.objective(point) == check(instance, sends(ordered, alone(ordered))).time_ns


def gather_all(instance_of_links: Instance) -> Instance:
    """The AllGather of one chunk a rank."""
    count = instance_of_links.topology.rank_count
    chunks = tuple(Chunk(100, (r,), tuple(range(count))) for r in range(count))
    return Instance(instance_of_links.topology, chunks)


def turned(count: int, by: int) -> Symmetry:
    ranks = tuple((r + by) % count for r in range(count))
    return Symmetry(ranks, ranks)


@pytest.mark.parametrize(("topology", "best"), [(ring(5), 400), (switched(1, 4, gbps=1.0), 600)])
def test_images_share_their_columns(topology: object, best: int) -> None:
    plain = gather_all(Instance(topology, ()))  # type: ignore[arg-type]
    count = plain.topology.rank_count
    symmetric = Instance(plain.topology, plain.chunks, (turned(count, 1),))
    few_columns, many = (intervals.formulate(i, horizon_ns=2000) for i in (symmetric, plain))
    assert few_columns.interval_count * count == many.interval_count
    for instance, formulation in ((symmetric, few_columns), (plain, many)):
        solution = solve(formulation.program, EXACT, solver="cpsat")
        assert solution.objective == best
        assert check(instance, formulation.schedule(solution)).time_ns == best
    found = few_columns.schedule(solve(few_columns.program, EXACT, solver="cpsat"))
    rotated = {
        Send(s.start_ns, (s.source + 1) % count, (s.target + 1) % count, ((s.chunks[0] + 1) % count,)) for s in found
    }
    assert rotated == set(found)


def test_images_that_collide_are_left_out() -> None:
    # Ranks 0 and 1 change places: both sends into rank 2 would have to start together at its one port.
    chunks = (Chunk(100, (0,), (2,)), Chunk(100, (1,), (2,)))
    swap = Symmetry((1, 0, 2), (1, 0))
    instance = Instance(switched(1, 3), chunks, (swap,))
    program = intervals.formulate(instance, horizon_ns=1000).program
    assert solve(program, solver="cpsat").status is SolverStatus.INFEASIBLE
    without = intervals.formulate(instance.without_symmetry(), horizon_ns=1000).program
    assert solve(without, EXACT, solver="cpsat").objective == 2 * (100 + 13)


def test_the_time_stays_between_bound_and_horizon() -> None:
    instance = gather_all(Instance(ring(4), ()))
    assert (
        solve(intervals.formulate(instance, horizon_ns=399).program, solver="cpsat").status is SolverStatus.INFEASIBLE
    )
    bounded = intervals.formulate(instance, horizon_ns=900, bound_ns=600)
    solution = solve(bounded.program, EXACT, solver="cpsat")
    assert (solution.objective, solution.bound) == (600, 600)
    assert check(instance, bounded.schedule(solution)).ok


def test_hops_out_of_reach_of_the_horizon_are_left_out() -> None:
    instance = Instance(ring(6), (Chunk(100, (0,), (2,)),))
    assert {link for _, link in intervals.formulate(instance, horizon_ns=400).variables.pairs} == {
        instance.topology.link_between[0, 1],
        instance.topology.link_between[1, 2],
    }


def test_relays_only_pass_on() -> None:
    """A star: leaves reach each other through rank 0 alone, which neither has nor wants the chunk, or the sum."""
    star = [link for link in switched(1, 4, gbps=1.0).links if 0 in (link.source, link.target)]
    topology = switched(1, 4)
    logical = type(topology)("star", (0,) * 4, tuple(star), topology.resources, topology.switches)
    chunks = (Chunk(100, (1,), (2, 3)), Chunk(100, (1, 2), (3,), reduces=True))
    for chunk, hops in zip(chunks, (3, 3), strict=True):
        instance = Instance(logical, (chunk,))
        formulation = intervals.formulate(instance, horizon_ns=2000)
        solution = solve(formulation.program, EXACT, solver="cpsat")
        assert solution.objective == 600
        found = formulation.schedule(solution)
        assert len(found) == hops
        assert check(instance, found).ok


def test_sums_for_several_targets_are_refused() -> None:
    instance = Instance(ring(3), (Chunk(100, (0, 1, 2), (0, 1), reduces=True),))
    with pytest.raises(InputError, match="more than one target"):
        intervals.formulate(instance, horizon_ns=1000)


def test_nothing_to_do_takes_no_time() -> None:
    instance = Instance(ring(3), (Chunk(100, (0,), (0,)), Chunk(0, (0,), (1,))))
    formulation = intervals.formulate(instance, horizon_ns=0)
    solution = solve(formulation.program, EXACT, solver="cpsat")
    assert solution.objective == 0
    assert formulation.schedule(solution) == ()
    assert list(itertools.chain(formulation.variables.pairs)) == []
