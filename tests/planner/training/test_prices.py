"""Prices of training plans: what a little more of each resource would give, held against arithmetic and the twin."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from loadmaster.api.cli import app
from loadmaster.api.report.notebook import frontier_html
from loadmaster.api.report.training.view import view
from loadmaster.api.report.training.views import plan_page
from loadmaster.errors import InputError, LimitReachedError, SolverError
from loadmaster.models.checking import checked
from loadmaster.models.kinds import kind_named, read_plan, write_plan, write_problem
from loadmaster.models.training.limits import peak_bytes
from loadmaster.models.training.plan import Schedule, TrainingPlan
from loadmaster.models.training.problem import Point, TrainingProblem
from loadmaster.models.training.runs import runs
from loadmaster.planner import Frontier, PlanOptions, PlanProgress, Price, frontier, plan
from loadmaster.planner.effort import Effort
from loadmaster.planner.training import prices as prices_module
from loadmaster.planner.training.driver import plan_training
from loadmaster.planner.training.prices import prices
from tests.models.placement.tiny import trace
from tests.models.training.steps import HOST, KB, group, step_of
from tests.models.training.training_twin import Twin

# One layer, 10 us each way at a kB a microsecond. Its forward pass takes so many bytes that 80 kB of state have to be
# away then: they come in the backward pass, 80 us after it began, and are back 80 us after the update of 3 us.
POINTS = (Point("keep", 10.0, 10.0, 3 * KB, 80 * KB),)
STATE = group("g", 0, state_bytes=80, host_update_us=None)
PROBLEM = step_of(1, STATE, points=POINTS)
BUDGET = peak_bytes(PROBLEM) - 1
MORE = ("1 GiB more of the budget", "a link 10 % faster to host", "a link 10 % faster from host")


def priced(problem: TrainingProblem) -> tuple[float, dict[str, Price]]:
    """The step under the budget, and its prices."""
    found = frontier(problem, PlanOptions(), budgets_bytes=[BUDGET], prices=True)
    (of,) = found.prices.values()
    return found.points[0].plan.objective, {price.more: price for price in of}


def test_gains_are_those_of_arithmetic() -> None:
    step_us, found = priced(PROBLEM)
    assert tuple(found) == MORE
    assert step_us == pytest.approx(10 + 80 + 3 + 80)
    # With everything on the device only phases and the update are left. A link that is faster takes 80 / 1.1.
    gains = [found[more].plan_gains for more in MORE]
    assert gains == pytest.approx([150.0, 80 - 80 / 1.1, 80 - 80 / 1.1])


def test_bounds_fall_as_in_the_twin() -> None:
    """Oracle: the program written out in PuLP, solved by CBC, before and after the change."""
    # Stores take twice as long as loads.
    slow, state = replace(HOST, to_gbps=0.5), {"state_bytes": 120, "host_update_us": None}
    problem = step_of(4, *(group(f"g{n}", n, **state) for n in range(4)), tier=slow)
    budget = int(0.6 * peak_bytes(problem))
    options = PlanOptions(budget_bytes=budget, time_limit_s=1, method="by-hand")
    found = {price.more: price for price in prices(problem, plan_training(problem, options), options)}

    def least(problem: TrainingProblem, budget_bytes: int) -> float:
        value = Twin(problem, budget_bytes, runs(problem, 1), integer=False).value()
        assert value is not None
        return value

    before = least(problem, budget)
    there, back = (replace(problem, host=replace(slow, **more)) for more in ({"to_gbps": 0.55}, {"from_gbps": 1.1}))
    falls = [before - least(problem, budget + (1 << 30)), before - least(there, budget), before - least(back, budget)]
    assert [found[more].bound_falls for more in MORE] == pytest.approx(falls, abs=1e-4)
    assert falls[0] > 100 and falls[1] > 10


def test_only_what_a_step_can_be_short_of_has_a_price() -> None:
    # The host updates in 50 us what it has got in 2 us and sends back in 2; it has to hold 88 kB for that, and can.
    problem = step_of(1, replace(STATE, host_update_us=50.0), points=POINTS, tier=replace(HOST, capacity_bytes=88 * KB))
    step_us, found = priced(problem)
    assert tuple(found) == (*MORE, "updates 10 % faster on host", "10 % more memory of host")
    assert step_us == pytest.approx(20 + 2 + 50 + 2)
    assert found["updates 10 % faster on host"].plan_gains == pytest.approx(50 - 50 / 1.1)
    memory = found["10 % more memory of host"]
    assert (memory.bound_falls, memory.plan_gains) == (pytest.approx(0.0, abs=1e-6), 0.0)
    # With less memory it cannot; a tenth more is enough again.
    short = step_of(1, replace(STATE, host_update_us=50.0), points=POINTS, tier=replace(HOST, capacity_bytes=84 * KB))
    step_us, found = priced(short)
    assert step_us == pytest.approx(173.0)
    assert found["10 % more memory of host"].plan_gains == pytest.approx(173.0 - 74.0)


def test_a_solver_that_breaks_leaves_the_gains(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise SolverError("no solver here")

    monkeypatch.setattr(Effort, "solved", broken)
    _, found = priced(PROBLEM)
    assert {price.bound_falls for price in found.values()} == {None}
    assert found[MORE[0]].plan_gains == pytest.approx(150.0)


def test_a_plan_has_prices_where_they_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told: list[PlanProgress] = []
    found = plan(PROBLEM, budget_bytes=BUDGET, prices=True, time_limit_s=5, on_progress=told.append)
    assert [one.seconds for one in told] == sorted(one.seconds for one in told)
    pricing = [one for one in told if one.phase.startswith("prices: ")]
    assert {(one.objective, one.bound, one.gap) for one in pricing} == {(found.objective, found.bound, found.gap)}
    assert isinstance(found, TrainingPlan) and found.prices is not None
    assert [price.more for price in found.prices] == [*MORE]
    assert [price.plan_gains for price in found.prices] == pytest.approx([150.0, 80 - 80 / 1.1, 80 - 80 / 1.1])
    assert read_plan(write_plan(found)) == found
    assert "prices" in checked(kind_named("training"), PROBLEM, found).trusted
    html = plan_page(view(PROBLEM, found))
    assert "What more would give" in html and "150.0 us" in html
    assert plan(PROBLEM, budget_bytes=BUDGET).prices is None
    step = tmp_path / "step.json"
    step.write_text(json.dumps(write_problem(PROBLEM)))
    assert app.main(["plan", str(step), "--budget", str(BUDGET), "--prices"]) == 0
    assert f"with     {MORE[0]}: the bound falls by " in capsys.readouterr().out


def test_prices_begin_with_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan of a smaller budget has a step of 173 us, too: no search is needed to know it."""
    begun: list[list[Schedule]] = []

    def plan_from(problem: TrainingProblem, options: PlanOptions, known: list[Schedule], **_: object) -> TrainingPlan:
        begun.append([*known])
        raise LimitReachedError("no time")

    monkeypatch.setattr(prices_module, "plan_from", plan_from)
    found = frontier(PROBLEM, PlanOptions(), budgets_bytes=[BUDGET - 1, BUDGET, peak_bytes(PROBLEM)], prices=True)
    schedules = [point.plan.schedule for point in found.points]
    assert len(begun) == 3 * len(MORE) and all(len(known) == 3 for known in begun)
    assert all(schedule in begun[0] for schedule in schedules)
    # With a gigabyte more, the largest budget's plan fits the others.
    assert [of[0].plan_gains for of in found.prices.values()] == pytest.approx([150.0, 150.0, 0.0])


@pytest.mark.parametrize("more", [{"budgets_bytes": [3]}, {}])
def test_kinds_without_prices_refuse_the_option(more: dict[str, list[int]]) -> None:
    problem = trace([("A", "A"), ("B", "")], [4, 3])
    with pytest.raises(InputError, match="prices: means nothing to placement"):
        if more:
            frontier(problem, PlanOptions(prices=True), budgets_bytes=more["budgets_bytes"])
        else:
            plan(problem, budget_bytes=100, prices=True)


def test_kinds_without_prices_say_so() -> None:
    with pytest.raises(InputError, match="prices: means nothing to placement"):
        frontier(trace([("A", "A"), ("B", "")], [4, 3]), PlanOptions(), count=2, prices=True)


def test_prices_are_printed_drawn_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step, html, out = (tmp_path / name for name in ("step.json", "report.html", "frontier.json"))
    step.write_text(json.dumps(write_problem(PROBLEM)))
    asked = ["frontier", str(step), "--budgets", f"1B,{BUDGET}", "--prices", "--html", str(html)]
    assert app.main([*asked, "-o", str(out), "--png", str(tmp_path / "frontier.png")]) == 0
    said = capsys.readouterr().out
    assert "the bound falls by" in said and "150.0 us" in said and MORE[1] in said
    assert "nothing" in said
    page = html.read_text()
    assert "<h2>Prices</h2>" in page and MORE[0] in page
    (written,) = json.loads(out.read_text())["prices"]
    assert written["budget_bytes"] == BUDGET and written["prices"][0]["plan_gains"] == pytest.approx(150.0)
    assert app.main([*asked, "--json", "--no-picture"]) == 0
    none, point = json.loads(capsys.readouterr().out)
    assert "prices" not in none and [price["more"] for price in point["prices"]] == [*MORE]


def test_prices_are_shown_in_a_notebook() -> None:
    found: Frontier = frontier(PROBLEM, PlanOptions(), budgets_bytes=[BUDGET], prices=True)
    assert "the plan gains" in frontier_html(found, PROBLEM)
