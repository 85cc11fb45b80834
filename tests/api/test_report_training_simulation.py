"""Baselines and a plan beside each other on one training step: in words, as figures, on a page."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from loadmaster.api.cli import app
from loadmaster.api.report.training.simulation import simulate
from loadmaster.errors import InputError
from loadmaster.models.kinds import kind_named, write_plan, write_problem
from loadmaster.models.training.limits import least_bytes, peak_bytes
from loadmaster.models.training.plan import GroupPlan, Schedule, Stay
from loadmaster.models.training.problem import Point
from loadmaster.planner.training.baselines import BASELINES
from tests.models.training.steps import KB, group, plan_of, step_of

# Phases: forward of l0 and l1 (10 us each), backward of l1 and l0 (20 us each). A kB takes a microsecond on the link.
POINTS = (Point("keep", 10.0, 20.0, 4 * KB), Point("checkpoint", 10.0, 30.0, KB, 0, 3 * KB))
PROBLEM = step_of(2, group("g0", 0), group("g1", 1), points=POINTS)
ENOUGH = peak_bytes(PROBLEM)
# The state of g0 is on the host and comes for its update, which is over at 63 us; it is back there at 71, for which the
# next step waits.
PLAN = plan_of(
    PROBLEM,
    Schedule((0, 0), (GroupPlan(state="host", update_after=3, update_stay=Stay(2, 4)), GroupPlan(update_after=3))),
    ENOUGH,
    74.0,
)


def figures(*policies: str, budget_bytes: int = ENOUGH) -> dict[str, dict[str, object]]:
    found = simulate(PROBLEM, policies, budget_bytes, PLAN).document
    assert (found["budget_bytes"], found["plain_us"]) == (budget_bytes, 66.0)
    return {row["policy"]: row for row in found["policies"]}


def test_policies_are_the_baselines_and_a_plan() -> None:
    assert kind_named("training").policies == (*BASELINES, "plan")


def test_each_is_replayed() -> None:
    found = figures("plain", "zero-offload", "plan")
    # Two layers of 30 us, two updates of 3 us.
    assert (found["plain"]["step_us"], found["plain"]["stall_us"], found["plain"]["stored_bytes"]) == (66.0, 0.0, 0)
    assert found["plain"]["peak_bytes"] == ENOUGH
    # 8 us more, until the state of g0 has gone.
    assert found["plan"]["step_us"] == pytest.approx(74.0) and found["plan"]["stall_us"] == pytest.approx(8.0)
    assert (found["plan"]["stored_bytes"], found["plan"]["loaded_bytes"]) == (8 * KB, 8 * KB)
    # Gradients of 2 kB go to the host, which updates each in 5 us; copies of 2 kB come back.
    offloaded = found["zero-offload"]
    assert (offloaded["stored_bytes"], offloaded["loaded_bytes"]) == (4 * KB, 4 * KB)
    assert offloaded["host_updates_us"] == 10.0
    # Master weights of 4 kB, state of 8, a copy and its gradient of 2 each.
    assert offloaded["host_bytes"] == 2 * 16 * KB


def test_what_does_not_fit_says_so() -> None:
    found = figures("plain", "fsdp", budget_bytes=ENOUGH - 1)
    assert found["plain"] == {"policy": "plain", "fits": False}
    assert found["fsdp"]["fits"] is True
    said = simulate(PROBLEM, ["plain", "fsdp"], ENOUGH - 1, None)
    head, _, header, plain, fsdp = said.text.splitlines()
    assert "a step takes 66.00 us; no plan takes less than" in head and header.startswith("policy")
    assert re.split(r"\s{2,}", plain.strip()) == ["plain", "does not fit"] and fsdp.startswith("fsdp")
    page = said.html()
    assert "does not fit" in page and "Links and updates: fsdp" in page and "Links and updates: plain" not in page


def test_all_on_one_page() -> None:
    page = simulate(PROBLEM, ["plain", "plan"], ENOUGH, PLAN).html()
    for words in ("Where each policy waits", "Memory over the step", "Links and updates: plan", "; no plan takes less"):
        assert words in page
    assert "forward of l0 waits 8.000 us" in page


def test_a_page_of_nothing_that_fits() -> None:
    said = simulate(PROBLEM, ["plain"], ENOUGH - 1, None)
    assert "does not fit" in said.html() and "Where each policy waits" not in said.html()


def test_where_the_host_has_no_room_no_plan_fits() -> None:
    # Each state of 8 kB alone could be on the host, all together not, and that is what the least budget takes.
    room = replace(PROBLEM.host, capacity_bytes=8 * KB)
    narrow = step_of(4, *(group(f"g{n}", n, host_update_us=None) for n in range(4)), tier=room)
    said = simulate(narrow, ["plain", "fsdp"], least_bytes(narrow)[0], None)
    assert said.text.splitlines()[0].endswith("; no plan fits")
    assert json.loads(json.dumps(said.document, allow_nan=False))["bound_us"] is None


def test_what_is_no_plan_of_this_step_is_refused() -> None:
    with pytest.raises(InputError, match="--plan: holds no schedule"):
        simulate(PROBLEM, ["plan"], ENOUGH, None)
    with pytest.raises(InputError, match=r"--plan: .*over the budget"):
        simulate(PROBLEM, ["plan"], least_bytes(PROBLEM)[0], PLAN)
    with pytest.raises(InputError, match="problem_sha256"):
        simulate(replace(PROBLEM, fixed_bytes=1), ["plan"], ENOUGH + 1, PLAN)
    with pytest.raises(InputError, match="budget_bytes: is too small"):
        simulate(PROBLEM, ["plain"], least_bytes(PROBLEM)[0] - 1, None)


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step, plan, html = (tmp_path / name for name in ("step.json", "plan.json", "report.html"))
    step.write_text(json.dumps(write_problem(PROBLEM)))
    plan.write_text(json.dumps(write_plan(PLAN)))
    told = ["simulate", str(step), "--budget", "100%", "--plan", str(plan)]
    assert app.main([*told, "--json", "--html", str(html)]) == 0
    rows = json.loads(capsys.readouterr().out)["policies"]
    assert [row["policy"] for row in rows] == [*BASELINES, "plan"]
    assert html.read_text().startswith("<!doctype html>")
    assert app.main(["simulate", str(step), "--budget", "1B"]) == 2
    assert "--budget: is too small" in capsys.readouterr().err
    assert app.main(["simulate", str(step), "--budget", "100%", "--policy", "lru"]) == 2
    assert "Choose of: plain, checkpoint" in capsys.readouterr().err
