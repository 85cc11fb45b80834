"""The program behind a plan as MPS: other solvers read it, and find the plan's objective."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import highspy
import pulp
import pytest

from loadmaster import planner
from loadmaster.api.report.memory import views
from loadmaster.api.report.views import export
from loadmaster.errors import InputError
from loadmaster.models.graph.limits import enough_bytes, whole_bytes
from loadmaster.models.kinds import Plan, Problem, kind_named, read_problem
from loadmaster.models.memory.presets import chain
from tests.models.graph.problems import rgcn, with_store
from tests.models.index.index_instances import random_problem

MEGABYTE = 1_000_000


def exported(problem: Problem, plan: Plan) -> bytes:
    (what,) = (export for export in kind_named(problem.kind).exports if export.name == "mps")
    written = export(problem, plan, what, {})
    assert isinstance(written, bytes)
    return written


def optimum(path: Path) -> float:
    """What HiGHS makes of the file, with the constant that its head names."""
    highs = highspy.Highs()
    highs.silent()
    assert highs.readModel(str(path)) == highspy.HighsStatus.kOk
    highs.setOptionValue("mip_rel_gap", 0.0)
    highs.run()
    assert highs.getModelStatus() == highspy.HighsModelStatus.kOptimal
    (constant,) = re.findall(r"^\*.* add (\S+) to what a solver says", path.read_text(), re.MULTILINE)
    return float(highs.getObjectiveValue()) + float(constant)


@pytest.mark.parametrize(("budget_megabytes", "offload"), [(4, False), (6, False), (4, True)])
def test_a_memory_program_has_the_plans_objective(budget_megabytes: int, offload: bool, tmp_path: Path) -> None:
    document: dict[str, Any] = {**chain(6, MEGABYTE), "name": "x\nROWS"}
    if offload:
        document["host_link"] = {"to_host_gbps": 2.0, "from_host_gbps": 2.0}
    problem = read_problem(document)
    plan = planner.plan(problem, budget_bytes=budget_megabytes * MEGABYTE, gap=1e-6, time_limit_s=60)
    assert plan.status == "optimal"
    path = tmp_path / "program.mps"
    path.write_bytes(exported(problem, plan))
    assert optimum(path) == pytest.approx(plan.objective, rel=1e-5)
    # Names are no part of what is solved, and other readers pass over the head, too.
    variables, read = pulp.LpProblem.fromMPS(str(path))
    assert len(variables) > 20
    assert read.numConstraints() > 20


@pytest.mark.parametrize("budget_megabytes", [3, 4, 6])
def test_a_memory_program_whose_last_backward_operator_reads(budget_megabytes: int, tmp_path: Path) -> None:
    document: dict[str, Any] = chain(5, MEGABYTE)
    for operator in document["backward"]:  # each reads the result of its own forward operator, as a sigmoid's does
        operator["implementations"][0]["needs"] = [len(document["forward"]) - operator["id"]]
    problem = read_problem(document)
    plan = planner.plan(problem, budget_bytes=budget_megabytes * MEGABYTE, gap=1e-6, time_limit_s=60)
    assert plan.status == "optimal"
    path = tmp_path / "program.mps"
    path.write_bytes(exported(problem, plan))
    assert optimum(path) == pytest.approx(plan.objective, rel=1e-5)


def test_an_index_program_has_the_plans_objective(tmp_path: Path) -> None:
    problem = random_problem(3)
    plan = planner.plan(problem, budget_bytes=1 << 20, gap=1e-6, time_limit_s=60)
    assert plan.status == "optimal"
    path = tmp_path / "program.mps"
    path.write_bytes(exported(problem, plan))
    assert optimum(path) == pytest.approx(plan.objective, rel=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_a_graph_program_bounds_the_plan_and_has_its_objective_where_memory_is_to_spare(
    seed: int, tmp_path: Path
) -> None:
    """Under a tight budget a plan keeps whole rows, and more than its kernels take at a time."""
    for problem in (rgcn(seed, training=True), with_store(seed)):
        optima = []
        enough, whole = enough_bytes(problem), whole_bytes(problem)
        for budget_bytes in (10 * whole, (enough + whole) // 2):
            plan = planner.plan(problem, budget_bytes=budget_bytes, gap=1e-6, time_limit_s=60)
            assert plan.status == "optimal" and plan.objective is not None
            path = tmp_path / "program.mps"
            path.write_bytes(exported(problem, plan))
            optima.append(optimum(path))
            assert optima[-1] <= plan.objective * (1 + 1e-6)
            if budget_bytes > whole:
                assert optima[-1] == pytest.approx(plan.objective, rel=1e-5)
        assert optima[1] >= optima[0] * (1 - 1e-6)


def test_a_graph_of_too_many_kernels_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = rgcn(0)
    plan = planner.plan(problem, budget_bytes=1 << 40, time_limit_s=60)
    monkeypatch.setattr("loadmaster.models.graph.candidates.MOST", 3)
    with pytest.raises(InputError, match="too many for one file"):
        exported(problem, plan)


def test_a_program_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "_MOST_CELLS", 10)
    problem = read_problem(chain(6, MEGABYTE))
    plan = planner.plan(problem, budget_bytes=6 * MEGABYTE, time_limit_s=60)
    with pytest.raises(InputError, match="too many for one file"):
        exported(problem, plan)
