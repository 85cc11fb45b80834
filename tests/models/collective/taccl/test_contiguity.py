"""The contiguity program: what its docstring says, written out in PuLP pair by pair; brute force; the checker."""

from __future__ import annotations

import itertools

import networkx as nx
import numpy as np
import pulp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadmaster.models.collective.checker import check
from loadmaster.models.collective.instance import Chunk, Instance, Symmetry
from loadmaster.models.collective.taccl import contiguity
from loadmaster.models.collective.taccl.ordering import HEURISTICS, Ordered, alone, order, time_ns
from loadmaster.models.topologies.topology import Link, Topology
from loadmaster.solvers.process import solve
from loadmaster.solvers.solution import SolveOptions, SolverStatus
from tests.models import cbc
from tests.models.collective.routes import random_routes, small_instances
from tests.models.collective.tiny import ring

few = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
EXACT = SolveOptions(gap=0.0, time_limit_s=60.0)
LIMIT = 3


def twin(ordered: Ordered, limit: int) -> float:
    """Equations 5.1 to 5.4 and 5.16 to 5.21 with a binary for every pair of chunks of a link, and a big M for all."""
    instance, hops = ordered.instance, ordered.hops
    links = instance.topology.links
    big = float(sum(links[hop.link].transfer_ns(instance.chunks[hop.chunk].size_bytes) for hop in hops))
    problem = pulp.LpProblem("contiguity", pulp.LpMinimize)
    time = pulp.LpVariable("time", 0)
    send = [pulp.LpVariable(f"send{h}", 0) for h in range(len(hops))]
    lat = [pulp.LpVariable(f"lat{h}", 0) for h in range(len(hops))]
    problem += time
    on_link = {k: [h for h in ordered.sequence if hops[h].link == k] for k in ordered.chunk_order}
    together = {}
    for k, mine in on_link.items():
        for c, o in itertools.combinations(mine, 2):
            sums = {instance.chunks[hops[h].chunk].reduces for h in (c, o)}
            # On every resource of the link nothing but hops of this link lies between the two.
            between = [
                set(held[held.index(c) : held.index(o) + 1]) <= set(mine)
                for held in ordered.resource_order
                if c in held and o in held
            ]
            may = links[k].message_ns > 0 and len(sums) == 1 and all(between)
            together[c, o] = together[o, c] = pulp.LpVariable(f"t{c}_{o}", 0, int(may), "Integer")
    for k, mine in on_link.items():
        link = links[k]
        for c, d, e in itertools.combinations(mine, 3):
            # Whoever travels together does so with all between them, and with whom these travel.
            problem += together[c, e] <= together[c, d]
            problem += together[c, e] <= together[d, e]
            problem += together[c, e] >= together[c, d] + together[d, e] - 1
        for c in mine:
            others = [o for o in mine if o != c]
            size = {h: instance.chunks[hops[h].chunk].size_bytes for h in mine}
            problem += pulp.lpSum(together[c, o] for o in others) <= limit - 1
            problem += lat[c] == link.message_ns + (size[c] + pulp.lpSum(size[o] * together[c, o] for o in others)) * (
                1 / link.gbps
            )
            for o in mine[mine.index(c) + 1 :]:
                problem += send[o] - send[c] <= big * (1 - together[c, o])
                problem += send[c] - send[o] <= big * (1 - together[c, o])
                problem += send[o] >= send[c] + lat[c] - big * together[c, o]
    for h, hop in enumerate(hops):
        problem += time >= send[h] + lat[h] + links[hop.link].latency_ns
        for g in hop.after:
            problem += send[h] >= send[g] + lat[g] + links[hops[g].link].latency_ns
    for held in ordered.resource_order:
        for c, o in itertools.combinations(held, 2):
            if hops[c].link != hops[o].link:
                problem += send[o] >= send[c] + lat[c]
    least = cbc.optimum(problem)
    assert least is not None
    return least


@few
@given(small_instances(), st.integers(0, 99), st.sampled_from(HEURISTICS), st.booleans())
def test_equals_the_twin(instance: Instance, seed: int, heuristic: str, backward: bool) -> None:
    ordered = order(instance, random_routes(instance, seed), heuristic, backward=backward)
    formulation = contiguity.formulate(ordered, limit=LIMIT)
    solution = solve(formulation.program, EXACT)
    assert solution.status is SolverStatus.OPTIMAL
    assert solution.objective == pytest.approx(twin(ordered, LIMIT))
    verdict = check(instance, formulation.schedule(solution))
    assert verdict.ok, verdict.violations
    # The solver keeps its rows to 1e-6; times are whole nanoseconds.
    assert verdict.time_ns <= solution.objective + 1e-3


def best_merging_ns(ordered: Ordered, limit: int) -> int:
    """The least time over every way to join neighbours of a link, each as early as possible."""
    order_of = [h for k in ordered.chunk_order for h in ordered.sequence if ordered.hops[h].link == k]
    best = time_ns(ordered, alone(ordered))
    for joins in itertools.product((False, True), repeat=len(order_of) - 1):
        messages = [[order_of[0]]]
        for joined, h in zip(joins, order_of[1:], strict=True):
            messages.append([h]) if not joined else messages[-1].append(h)
        if all(fits(ordered, message, limit) for message in messages):
            try:
                best = min(best, time_ns(ordered, [tuple(message) for message in messages]))
            except nx.NetworkXUnfeasible:
                continue
    return best


def fits(ordered: Ordered, message: list[int], limit: int) -> bool:
    hops, held = ordered.hops, [held for held in ordered.resource_order if message[0] in held]
    one_link = len({hops[h].link for h in message}) == 1
    gaps = [set(message) != set(h[h.index(message[0]) : h.index(message[0]) + len(message)]) for h in held]
    return one_link and len(message) <= limit and not any(gaps)


@few
@given(small_instances(sums=False), st.integers(0, 99))
def test_equals_brute_force(instance: Instance, seed: int) -> None:
    ordered = order(instance, random_routes(instance, seed))
    if not 1 <= len(ordered.hops) <= 9:
        return
    formulation = contiguity.formulate(ordered, limit=LIMIT)
    verdict = check(instance, formulation.schedule(solve(formulation.program, EXACT)))
    assert verdict.ok
    assert verdict.time_ns == best_merging_ns(ordered, LIMIT)


def dear_messages(chunks: int, targets: tuple[int, ...] = (1,)) -> Instance:
    """Chunks of 10 bytes at rank 0; 0 -> 1 -> 2 with 100 ns a message and 1 byte per ns."""
    links = (Link(0, 1, 0, 100, 1.0, (0,)), Link(1, 2, 0, 100, 1.0, (1,)))
    return Instance(Topology("pair", (0, 0, 0), links, ("a", "b")), (Chunk(10, (0,), targets),) * chunks)


@pytest.mark.parametrize(("limit", "time"), [(1, 440), (2, 240), (3, 240), (4, 140)])
def test_chunks_travel_together_up_to_the_limit(limit: int, time: int) -> None:
    formulation = contiguity.formulate(order(dear_messages(4), [[0]] * 4), limit=limit)
    solution = solve(formulation.program, EXACT)
    assert solution.objective == pytest.approx(time)
    assert max(len(send.chunks) for send in formulation.schedule(solution)) <= limit
    none = contiguity.formulate(order(dear_messages(4), [[0]] * 4), limit=limit, merging=frozenset())
    assert solve(none.program, EXACT).objective == pytest.approx(440)


def test_the_sweet_spot_between_few_messages_and_early_ones() -> None:
    # Two hops, four chunks. All together: 140 + 140. In pairs: 120 + 120 + 120 = 360. Alone: 110 * 5 = 550.
    formulation = contiguity.formulate(order(dear_messages(4, (2,)), [[0, 1]] * 4))
    assert solve(formulation.program, EXACT).objective == pytest.approx(280)
    # With large chunks messages cost little beside them: pipelining wins.
    large = Instance(dear_messages(1).topology, (Chunk(1000, (0,), (2,)),) * 4)
    solution = solve(contiguity.formulate(order(large, [[0, 1]] * 4)).program, EXACT)
    assert solution.objective == pytest.approx(5500)


@few
@given(small_instances(), st.integers(0, 99))
def test_the_start_is_feasible_and_the_horizon_holds(instance: Instance, seed: int) -> None:
    ordered = order(instance, random_routes(instance, seed))
    formulation = contiguity.formulate(ordered, limit=LIMIT)
    columns, values = formulation.start()
    point = np.empty(formulation.program.column_count)
    point[columns] = values
    assert formulation.program.violation(point) == pytest.approx(0.0, abs=1e-9)
    assert formulation.program.objective(point) == pytest.approx(time_ns(ordered, alone(ordered)))


def test_a_horizon_below_the_optimum_is_infeasible() -> None:
    ordered = order(dear_messages(4), [[0]] * 4)
    assert solve(contiguity.formulate(ordered, horizon_ns=139).program, EXACT).status is SolverStatus.INFEASIBLE
    assert solve(contiguity.formulate(ordered, horizon_ns=140).program, EXACT).status is SolverStatus.OPTIMAL


def test_images_share_their_columns_and_the_optimum_stays() -> None:
    count, parts = 4, 2
    topology = ring(count, message_ns=300)
    ranks = tuple((r + 1) % count for r in range(count))
    chunks = tuple(Chunk(100, (r,), tuple(range(count))) for r in range(count) for _ in range(parts))
    turned = tuple(ranks[c // parts] * parts + c % parts for c in range(count * parts))
    instance = Instance(topology, chunks, (Symmetry(ranks, turned),))
    right = {link.source: k for k, link in enumerate(topology.links) if (link.target - link.source) % count == 1}
    routes = [[right[(c // parts + step) % count] for step in range(count - 1)] for c in range(count * parts)]
    aliased, plain = (order(i, routes) for i in (instance, instance.without_symmetry()))
    small, large = contiguity.formulate(aliased), contiguity.formulate(plain)
    assert small.program.column_count < large.program.column_count / 3
    solution = solve(small.program, EXACT)
    assert solution.objective == pytest.approx(twin(aliased, 6)) == pytest.approx(3 * 500)
    assert solve(large.program, EXACT).objective == pytest.approx(1500)
    assert check(instance, small.schedule(solution)).time_ns == 1500


def test_what_travels_together_arrives_together_after_its_latency() -> None:
    # Both in one message of 500 ns, then 1000 ns on the way, then 500 ns again; alone they would be there at 2200.
    links = (Link(0, 1, 1000, 300, 1.0, (0,)), Link(1, 2, 0, 300, 1.0, (1,)))
    instance = Instance(Topology("far", (0,) * 3, links, ("far", "near")), (Chunk(100, (0,), (2,)),) * 2)
    ordered = order(instance, [[0, 1]] * 2)
    assert time_ns(ordered, alone(ordered)) == 2200
    formulation = contiguity.formulate(ordered)
    solution = solve(formulation.program, EXACT)
    assert solution.objective == pytest.approx(2000)
    assert check(instance, formulation.schedule(solution)).time_ns == 2000
