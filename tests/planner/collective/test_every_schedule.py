"""What collective plans prove, against every schedule of small problems; what they say of their clock."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from loadmaster.models.collective.bounds import all_bounds, lower_bound
from loadmaster.models.collective.checker import check_plan
from loadmaster.models.collective.collectives import instance_of
from loadmaster.models.collective.instance import Chunk, Instance
from loadmaster.models.collective.plan import CollectivePlan
from loadmaster.models.collective.problem import Collective, CollectiveProblem
from loadmaster.models.collective.proof import prove, throughput_bound_ns
from loadmaster.models.collective.reach import unreachable
from loadmaster.models.topologies.presets import preset
from loadmaster.models.topologies.topology import Link, Topology
from loadmaster.planner import PlanOptions, plan
from loadmaster.planner.collective import one_size
from loadmaster.planner.effort import Effort
from tests.models.collective.optimal_schedules import Search
from tests.models.collective.tiny import problem, ring, switched

# States of the search by which every schedule is tried.
MOST_STATES = 20_000


def tiny_problem(seed: int) -> CollectiveProblem:
    """A chunk or two on two or three ranks, some wires shared; bytes, GiB, nanoseconds and seconds."""
    rng = random.Random(seed)
    count = rng.choice((2, 3, 3))
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b and rng.random() < 0.75] or [(0, 1)]
    latencies = (0, 700, 20_000) if seed % 2 else (0, 1000, 2_000_000_000)

    def costs() -> tuple[int, int, float]:
        return rng.choice(latencies), rng.choice((0, 100, 5000)), rng.choice((0.5, 1.0, 8.0, 450.0))

    alike, wires = costs() if rng.random() < 0.5 else None, rng.choice((len(pairs), 2))
    links = tuple(Link(a, b, *(alike or costs()), (k % wires,)) for k, (a, b) in enumerate(pairs))
    nodes = [rng.choice((0, 1)) for _ in range(count)] if rng.random() < 0.4 else [0] * count
    number = {node: n for n, node in enumerate(dict.fromkeys(nodes))}
    topology = Topology("tiny", tuple(number[n] for n in nodes), links, tuple(f"wire {n}" for n in range(wires)))
    unit = rng.choice((1, 1000, 1 << 30))
    chunks = []
    for place in range(rng.choice((1, 1, 2))):
        reduces = rng.random() < 0.4
        most = count if reduces or count > 2 else 1
        sources = tuple(sorted(rng.sample(range(count), rng.randint(1, most))))
        targets = tuple(sorted(rng.sample(range(count), rng.randint(1, count))))
        size_bytes = rng.choice((0, 1, 3, 8)) if place else rng.choice((1, 3, 8))
        chunks.append(Chunk(size_bytes * unit, sources, targets, reduces))
    total = sum(chunk.size_bytes for chunk in chunks)
    return CollectiveProblem("tiny", topology, "custom", (total,), custom=tuple(chunks))


def every_schedule(instance: Instance) -> Search:
    """The best of all; chunks of no bytes are everywhere."""
    return Search(replace(instance, chunks=tuple(c for c in instance.chunks if c.size_bytes)), MOST_STATES)


def hold_bounds(seed: int) -> bool:
    """Bounds and reachability of one problem; whether there is a schedule."""
    posed = tiny_problem(seed)
    instance = instance_of(posed, posed.sizes_bytes[0], 1)
    search = every_schedule(instance)
    assert search.exact
    assert (search.best_ns is None) == (unreachable(instance) is not None), seed
    if search.best_ns is None:
        return False
    assert all(bound.ns <= search.best_ns for bound in all_bounds(instance)), seed
    proof = prove(posed, posed.sizes_bytes[0])
    assert max(proof.bound.ns, proof.throughput_ns) <= search.best_ns, seed
    return True


def hold_plan(seed: int) -> None:
    """A plan of one problem: no better than the best schedule, no worse than its bound says, infeasible where none."""
    posed = tiny_problem(seed)
    best_ns = every_schedule(instance_of(posed, posed.sizes_bytes[0], 1)).best_ns
    found = plan(posed, PlanOptions(time_limit_s=60.0, gap=1.0))
    assert isinstance(found, CollectivePlan)
    if best_ns is None:
        assert found.status == "infeasible" and found.infeasibility is not None and found.stopped_by == "proof"
        chunk = posed.custom[found.infeasibility.chunk] if posed.custom else None
        assert chunk is not None and found.infeasibility.rank in chunk.targets
        return
    assert check_plan(posed, found).ok
    (algorithm,) = found.algorithms
    assert algorithm.bound_ns <= best_ns <= algorithm.time_ns


def test_what_is_proved_holds_for_every_schedule() -> None:
    assert sum(hold_bounds(seed) for seed in range(30)) > 15
    for seed in range(12):
        hold_plan(seed)


@pytest.mark.slow
def test_what_is_proved_holds_for_every_schedule_of_five_hundred_problems() -> None:
    assert sum(hold_bounds(seed) for seed in range(1000, 1560)) > 400


@pytest.mark.slow
def test_plans_of_five_hundred_problems_hold() -> None:
    for seed in range(2000, 2500):
        hold_plan(seed)


def test_a_sum_goes_on_from_a_relay_where_no_target_reaches_the_others() -> None:
    ends = ((0, 4), (1, 4), (4, 2), (4, 3))
    links = tuple(Link(a, b, 0, 100, 1.0, (k,)) for k, (a, b) in enumerate(ends))
    topology = Topology("relay", (0,) * 5, links, ("a", "b", "c", "d"))
    parts = Chunk(1000, (0, 1), (2, 3), reduces=True)
    posed = CollectiveProblem("relay", topology, "custom", (1000,), custom=(parts,))
    found = plan(posed, PlanOptions(gap=0.0))
    assert found.status == "optimal" and found.objective == pytest.approx(2.2) and check_plan(posed, found).ok


def test_a_sum_of_one_part_is_copied_from_where_it_is() -> None:
    topology = replace(ring(3), links=tuple(replace(link, latency_ns=10**6) for link in ring(3).links))
    part = Chunk(8, (1,), (0, 1, 2), reduces=True)
    posed = CollectiveProblem("one part", topology, "custom", (8,), custom=(part,))
    found = plan(posed, PlanOptions(gap=0.0))
    assert found.status == "optimal" and found.objective == pytest.approx(1000.108)


@pytest.mark.parametrize("collective", ["allgather", "allreduce", "reduce_scatter", "alltoall"])
def test_both_ways_of_one_wire_are_one_after_the_other(collective: Collective) -> None:
    """However the buffers are cut, each rank is sent its bytes in a message of its own."""
    links = (Link(0, 1, 700, 10_000, 1.0, (0,)), Link(1, 0, 700, 10_000, 1.0, (0,)))
    posed = problem(Topology("two", (0, 1), links, ("wire",)), collective, 64 << 10)
    found = plan(posed, PlanOptions(gap=0.0))
    each = 10_000 + (64 << 10 if collective == "allreduce" else 32 << 10)
    assert found.status == "optimal" and found.objective == found.bound == pytest.approx((2 * each + 700) / 1e3)


class Asked:
    """A clock that is up once it was asked so often."""

    def __init__(self, most: int) -> None:
        self.count, self.most = 0, most

    def __call__(self) -> bool:
        self.count += 1
        return self.count > self.most


@pytest.mark.parametrize("collective", ["broadcast", "alltoall", "allgather"])
def test_bounds_that_are_cut_short_hold_and_stop_at_once(collective: Collective) -> None:
    """What takes long asks the clock on the way, and not only when it is done."""
    posed = problem(preset("hgx-h200", 1), collective, 64 << 10, root=0 if collective == "broadcast" else None)
    instance = instance_of(posed, 64 << 10, 8)
    full, through = lower_bound(instance).ns, throughput_bound_ns(instance)
    for most in (0, 1, 5):
        asked = Asked(most)
        assert 0 < lower_bound(instance, over=asked).ns <= full
        # Once by each argument that takes long, and once after it.
        assert asked.count <= most + 3
        assert throughput_bound_ns(instance, Asked(most)) <= through


def test_a_search_that_the_clock_ends_says_time() -> None:
    """The clock of a size is up before that of the run: some of it is kept for checks."""
    options = PlanOptions(time_limit_s=1000.0, gap=0.0)
    effort, posed = Effort(options), problem(switched(1, 4), "broadcast", 4096, root=0)
    search = one_size.OneSize(posed, 4096, effort, effort.elapsed_s)
    assert search.run() is not None
    assert effort.stopped_by(proved=False) == "time" and effort.left_s > 900
    assert effort.stopped_by(proved=True) == "gap"


def test_a_search_that_has_no_more_to_try_says_method() -> None:
    effort = Effort(PlanOptions(time_limit_s=1000.0))
    assert effort.stopped_by(proved=False) == "method"
