"""Schedules in few steps: the program against its twin, and its schedules against the checker."""

from __future__ import annotations

from dataclasses import replace

import pulp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadmaster.errors import InputError
from loadmaster.models.collective.checker import check
from loadmaster.models.collective.collectives import instance_of
from loadmaster.models.collective.instance import Chunk, Instance
from loadmaster.models.collective.problem import Sketch
from loadmaster.models.collective.steps import StepSchedule, formulate, least_steps
from loadmaster.models.topologies.presets import preset
from loadmaster.planner.collective.prune import retime
from loadmaster.solvers.process import solve
from loadmaster.solvers.solution import Solution, SolveOptions
from tests.models import cbc
from tests.models.collective.routes import small_instances
from tests.models.collective.tiny import problem, ring


def solved(found: StepSchedule) -> Solution:
    return solve(found.program, SolveOptions(time_limit_s=30.0, gap=0.0))


def twin_ns(instance: Instance, steps: int) -> float | None:
    """The same, written out in PuLP, with every chunk on every link in every step."""
    topology, chunks = instance.topology, instance.chunks
    C, K, S = range(len(chunks)), range(len(topology.links)), range(steps)
    source, target = [k.source for k in topology.links], [k.target for k in topology.links]
    model = pulp.LpProblem("steps", pulp.LpMinimize)
    length = [pulp.LpVariable(f"length_{s}", 0) for s in S]
    sent = {(c, k, s): pulp.LpVariable(f"sent_{c}_{k}_{s}", cat="Binary") for c in C for k in K for s in S}
    used = {(k, s): pulp.LpVariable(f"used_{k}_{s}", cat="Binary") for k in K for s in S}
    model += pulp.lpSum(length)
    for s in S:
        for p in range(len(topology.resources)):
            held = [k for k in K if p in topology.links[k].resources]
            terms = [topology.links[k].message_ns * used[k, s] for k in held]
            terms += [chunks[c].size_bytes / topology.links[k].gbps * sent[c, k, s] for c in C for k in held]
            if held:
                model += length[s] >= max(topology.links[k].latency_ns for k in held) + pulp.lpSum(terms)
        for c in C:
            for k in K:
                model += used[k, s] >= sent[c, k, s]
                if source[k] not in chunks[c].sources:
                    before = [sent[c, j, t] for j in K for t in range(s) if target[j] == source[k]]
                    model += sent[c, k, s] <= pulp.lpSum(before)
    for c in C:
        for r in range(topology.rank_count):
            into = pulp.lpSum(sent[c, k, s] for k in K for s in S if target[k] == r)
            if r in chunks[c].sources:
                model += into == 0
            elif r in chunks[c].targets:
                model += into == 1
            else:
                model += into <= 1
    return cbc.optimum(model)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(small_instances(sums=False, most_chunks=2), st.integers(0, 1))
def test_the_optimum_is_that_of_the_twin(instance: Instance, more: int) -> None:
    """Every resource has some link of every step in the twin, so that latencies count alike where it is used at all."""
    topology = instance.topology
    instance = replace(
        instance, topology=replace(topology, links=tuple(replace(k, latency_ns=30) for k in topology.links))
    )
    steps = max(1, least_steps(instance, instance.usable_links)) + more
    found = formulate(instance, steps)
    solution, expected = solved(found), twin_ns(instance, steps)
    if not found.variables.triples:
        return
    assert solution.objective == pytest.approx(expected, rel=1e-5)
    verdict = check(instance, retime(instance, found.schedule(solution)))
    assert verdict.ok, verdict.violations
    if all(len(link.resources) == 1 for link in topology.links):
        assert solution.objective is not None
        assert verdict.time_ns <= solution.objective + len(topology.links) * steps


def test_two_steps_on_a_dgx1() -> None:
    """Two messages of 700 ns on each link, and 1.5 pieces over each single NVLink.

    In two steps every piece goes over each link of its rank once: one over each single link. Of the three ranks two
    links away from it, one has single links alone in between at its end: 8 ways more for 16 single links.
    """
    size_bytes = 1 << 19
    whole = problem(preset("dgx1"), "allgather", size_bytes)
    instance = instance_of(whole, size_bytes, 2, sketch=Sketch(symmetry=((4, 8), (2, 4))))
    assert least_steps(instance, instance.usable_links) == 2
    found = formulate(instance, 2)
    solution = solved(found)
    expected_ns = 2 * 700 + 1.5 * size_bytes / 8 * 46e3 / 2**20
    assert solution.objective == pytest.approx(expected_ns)
    verdict = check(instance, retime(instance, found.schedule(solution)))
    assert verdict.ok and expected_ns <= verdict.time_ns <= expected_ns + 2


def test_what_cannot_be_reached_takes_no_number_of_steps() -> None:
    chunks = (Chunk(10, (0,), (2,)),)
    instance = Instance(ring(4), chunks)
    assert least_steps(instance, instance.usable_links) == 2
    assert least_steps(instance, [()]) == 0


def test_sums_are_refused() -> None:
    with pytest.raises(InputError, match="sums"):
        formulate(Instance(ring(3), (Chunk(10, (0, 1, 2), (0,), reduces=True),)), 2)
