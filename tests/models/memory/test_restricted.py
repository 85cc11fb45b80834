"""Recompute only, offload only: what they may not do, and that what they find is a plan of the whole problem."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest

from loadmaster import planner
from loadmaster.errors import InputError
from loadmaster.models.memory.checker import check
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.models.memory.variants import restrictions
from loadmaster.planner import PlanOptions
from tests.models.memory.brute_force import best_objective, best_over_an_endless_link
from tests.models.memory.instances import random_problem, seeds
from tests.models.memory.test_cuts import cutting
from tests.models.memory.test_offload import MIB, budget_of, chain, link_of

# As good as endless: a mebibyte takes a millionth of a microsecond. Only cuts cost something.
ENDLESS = link_of(1e-6)


def instance(seed: int) -> tuple[MemoryProblem, int]:
    """Chains, and graphs with skips and operators in place, where what is sent costs little or much; a tight budget."""
    if seed % 2:
        problem = chain(seed, ENDLESS, operators=5)
    else:
        problem = random_problem(seed, operators=4, encodings=0.0, choices=1, host_link=ENDLESS, unit_bytes=MIB)
    problem = cutting(problem, (3.0, 12.0)[seed // 2 % 2])
    return problem, budget_of(problem, 0.2 + 0.1 * (seed % 3))


@functools.cache
def best(problem_of: int) -> tuple[float, dict[str, float]]:
    """The best objective of the whole and of each restriction, by trying everything."""
    problem, budget = instance(problem_of)
    narrower = {
        name: best_objective(one, budget) if one.host_link is None else min(best_over_an_endless_link(one, budget))
        for name, one in restrictions(problem).items()
    }
    return min(best_over_an_endless_link(problem, budget)), narrower


def test_one_has_no_link_and_the_other_computes_nothing_twice() -> None:
    problem = random_problem(0, host_link=ENDLESS)
    found = restrictions(problem)
    assert list(found) == ["recompute only", "offload only"]
    assert found["recompute only"] == replace(problem, host_link=None)
    once = found["offload only"]
    assert not any(f.recomputable for f in once.forward)
    assert replace(once, forward=problem.forward) == problem
    assert len({problem.sha256, *(one.sha256 for one in found.values())}) == 3


@pytest.mark.parametrize(
    ("field", "problem"),
    [
        ("problem.host_link", random_problem(0)),
        ("problem.objective", random_problem(0, objective="energy", host_link=ENDLESS)),
    ],
)
def test_without_offloading_there_is_nothing_to_compare(field: str, problem: MemoryProblem) -> None:
    with pytest.raises(InputError) as caught:
        restrictions(problem)
    assert caught.value.field == field
    assert "nothing to compare" in caught.value.problem and caught.value.remedy


@pytest.mark.parametrize("seed", seeds((1, 2, 3), (0, 4, 5, 6, 7)))
def test_fewer_choices_are_never_better(seed: int) -> None:
    whole, narrower = best(seed)
    assert narrower.keys() == {"recompute only", "offload only"}
    assert all(whole <= one for one in narrower.values())


def test_the_instances_tell_them_apart() -> None:
    """Each restriction is dearer than the whole somewhere, and so is either than the other."""
    found = [best(seed) for seed in (1, 2, 3)]
    for name, other in (("recompute only", "offload only"), ("offload only", "recompute only")):
        assert any(whole < one[name] for whole, one in found)
        assert any(one[name] < one[other] for _, one in found)


@pytest.mark.parametrize("seed", seeds((1, 2, 3), (0, 4, 5, 6, 7)))
def test_their_plans_are_plans_of_the_whole(seed: int) -> None:
    """What is found lies above, and what is proved below, what trying everything finds."""
    problem, budget = instance(seed)
    least, narrower = best(seed)
    found = planner.frontier(problem, PlanOptions(time_limit_s=5.0, gap=0.0), limits=[budget], restrictions=True)
    assert found.restrictions.keys() == narrower.keys()
    for name, of in (("", found), *found.restrictions.items()):
        plan, known = of.points[0].plan, narrower.get(name, least)
        if plan.schedule is None:
            assert plan.status == "infeasible" and known == float("inf")
            continue
        verdict = check(problem, plan.schedule, budget)
        assert verdict.violations == ()
        assert verdict.objective == pytest.approx(plan.objective)
        assert plan.bound - 1e-3 <= known <= plan.objective + 1e-3
        if name == "recompute only":
            assert plan.schedule.offload == () and verdict.offloaded_bytes == 0
        if name == "offload only":
            assert all(stage.computes == () for stage in plan.schedule.stages[1:])
