"""Graph plans in words, on a page, as a picture and a table."""

from __future__ import annotations

import csv
import io

import pytest

import loadmaster
from loadmaster.api.report.graph import views
from loadmaster.api.report.graph.view import GraphView
from loadmaster.api.report.views import html
from loadmaster.errors import InputError
from loadmaster.models.graph.limits import enough_bytes
from loadmaster.models.graph.plan import GraphPlan
from tests.models.graph import problems

PLENTY = 1 << 30


def planned(budget_bytes: int = PLENTY) -> GraphPlan:
    found = loadmaster.plan(problems.rgcn(2, training=True), budget_bytes=budget_bytes, progress=False)
    assert isinstance(found, GraphPlan)
    return found


@pytest.fixture(scope="module")
def seen() -> GraphView:
    return views.view(problems.rgcn(2, training=True), planned())


def test_every_value_says_where_it_lives_and_which_kernel_makes_it(seen: GraphView) -> None:
    where = {row.name: (row.where, row.kernel) for row in seen.values}
    assert where["h"] == ("given", None)
    assert {row.where for row in seen.values} <= {"given", "view", "inline", "kept"}
    kept = {row.name: row.kernel for row in seen.values if row.where == "kept"}
    stored = {seen.program.values[n].name: at for at, k in enumerate(seen.schedule.kernels) for n in k.stores}
    assert kept == stored


def test_words_name_the_step_its_proof_and_its_order(seen: GraphView) -> None:
    text = views.summary(seen.plan)
    assert "optimal" in text
    assert f"in {len(seen.kernels)} kernels" in text
    assert "aggregate7 " in text
    assert "passed" in text
    shown = views.details(seen)
    assert "linear(" in shown
    assert "traverse of target" in shown
    assert "kernels take" in views.verdict(seen.plan, seen.check)


def test_hot_rows_are_told() -> None:
    problem = problems.with_store(0)
    plan = loadmaster.plan(problem, budget_bytes=enough_bytes(problem) + 2_560, progress=False)
    assert isinstance(plan, GraphPlan)
    assert f"{plan.hot_rows} hottest rows on the GPU" in views.summary(plan)
    (picture,) = views.pictures(views.view(problem, plan))
    assert "features from the host" in picture.drawing.markup


def test_an_infeasible_plan_says_what_works() -> None:
    plan = planned(1_000)
    assert plan.infeasibility is not None
    assert f"{plan.infeasibility.minimum_budget_bytes} bytes" in views.summary(plan)
    assert f"{plan.infeasibility.minimum_budget_bytes} bytes" in views.infeasible(plan)


def test_the_page_holds_program_and_kernels(seen: GraphView) -> None:
    page = html(seen).decode()
    assert "Where the time goes" in page
    assert "The program" in page
    assert all(row.name in page for row in seen.values)


def test_the_picture_has_a_bar_for_every_kernel(seen: GraphView) -> None:
    (picture,) = views.pictures(seen)
    assert picture.drawing.markup.count("<rect") == len(seen.kernels)
    assert views.png(seen).startswith(b"\x89PNG")


def test_the_table_has_a_row_for_every_kernel(seen: GraphView) -> None:
    rows = [*csv.DictReader(io.StringIO(views.csv(seen).decode()))]
    assert len(rows) == len(seen.kernels)
    assert sum(float(row["time_us"]) for row in rows) == pytest.approx(seen.check.kernels_us, abs=0.01)


def test_a_plan_of_another_problem_is_not_shown() -> None:
    with pytest.raises(InputError):
        views.view(problems.rgcn(3, training=True), planned())
