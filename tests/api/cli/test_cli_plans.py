"""``plan``, ``check`` and ``show`` around a planner that answers by hand."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadmaster import planner
from loadmaster.api.cli import app
from loadmaster.errors import LimitReachedError
from loadmaster.models.kinds import read_plan, read_problem, write_plan
from loadmaster.models.memory.plan import Blocker, MemoryInfeasibility, MemoryPlan
from loadmaster.models.memory.presets import chain
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.planner.options import PlanOptions, PlanProgress
from tests.api.cli.plans_by_hand import MEGABYTE, no_plan, plan_by_hand

BUDGET = 8 * MEGABYTE
# Of the plan by hand. While forward 2 runs again before backward 2: results 0 to 2, and a gradient.
PEAK = 4 * MEGABYTE
Planner = Callable[..., MemoryPlan]


def run(*arguments: str | Path) -> int:
    """Exit status of a command; argparse ends a process where main returns."""
    try:
        return app.main([str(a) for a in arguments])
    except SystemExit as end:
        return int(end.code or 0)


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(chain(6, MEGABYTE)))
    return path


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Planner], list[PlanOptions]]:
    """Put a planner in the real one's place; returns the options it is called with."""

    def put(answer: Planner) -> list[PlanOptions]:
        asked: list[PlanOptions] = []

        def plan(
            problem: MemoryProblem,
            options: PlanOptions,
            *,
            on_progress: Callable[[PlanProgress], None],
            cancelled: Callable[[], bool],
        ) -> MemoryPlan:
            asked.append(options)
            on_progress(PlanProgress(0.5, "solve", "first plan", 12_000.0, 9_000.0, 0.25))
            return answer(problem, cancelled)

        monkeypatch.setattr(planner, "plan", plan, raising=False)
        return asked

    return put


def by_hand(problem: MemoryProblem, cancelled: Callable[[], bool]) -> MemoryPlan:
    return plan_by_hand(chain(6, MEGABYTE), BUDGET)


def test_plan_writes_the_plan_and_says_what_it_is(
    problem: Path, tmp_path: Path, use: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = use(by_hand)
    output = tmp_path / "plan.json"
    flags = ["--budget", "8MB", "--time-limit", "7", "--gap", "0.1", "--seed", "3", "--memory-limit", "1GiB"]
    assert run("plan", problem, *flags, "--method", "monet", "--solver", "highs", "-o", output) == 0
    assert asked == [PlanOptions(7.0, 0.1, 3, "highs", "monet", BUDGET, 1 << 30)]
    assert read_plan(output) == plan_by_hand(chain(6, MEGABYTE), BUDGET)
    out, err = capsys.readouterr()
    assert "gap 10.00 %" in out and "feasible" in out
    assert "gap 25.00 %" in err
    assert "\x1b" not in err


def whole() -> dict[str, Any]:
    """The document of the plan by hand, as JSON has it."""
    document: dict[str, Any] = json.loads(json.dumps(write_plan(plan_by_hand(chain(6, MEGABYTE), BUDGET))))
    return document


def without_schedule() -> dict[str, Any]:
    """The same as every ``--json`` prints it."""
    return {name: value for name, value in whole().items() if name not in ("schedule", "infeasibility")}


def test_json_is_the_plan_without_its_schedule(problem: Path, use: Any, capsys: pytest.CaptureFixture[str]) -> None:
    use(by_hand)
    assert run("plan", problem, "--budget", "8MB", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert {**without_schedule(), **found} == found, "what every plan has is all there"
    assert "schedule" not in found


@pytest.mark.parametrize(("gap", "means"), [("1%", 0.01), ("2.5 %", 0.025), ("0%", 0.0), ("0.1", 0.1), ("1e-3", 1e-3)])
def test_a_gap_as_a_percentage_or_as_a_fraction(gap: str, means: float, problem: Path, use: Any) -> None:
    asked = use(by_hand)
    assert run("plan", problem, "--budget", "8MB", "--gap", gap) == 0
    assert asked[0].gap == pytest.approx(means)


def test_output_to_stdout_is_the_plan_alone(problem: Path, use: Any, capsys: pytest.CaptureFixture[str]) -> None:
    use(by_hand)
    assert run("plan", problem, "--budget", "8MB", "-o", "-") == 0
    assert json.loads(capsys.readouterr().out) == whole()


def test_the_problem_is_not_written_over(problem: Path, use: Any, capsys: pytest.CaptureFixture[str]) -> None:
    use(by_hand)
    before = problem.read_text()
    (problem.parent / "link.json").symlink_to(problem)
    for same in (problem, problem.parent / "." / problem.name, problem.parent / "link.json"):
        assert run("plan", problem, "--budget", "8MB", "-o", same) == 2
        assert "-o: is the problem" in capsys.readouterr().err
    assert run("frontier", problem, "--html", problem) == 2
    assert "--html: is the problem" in capsys.readouterr().err
    assert run("frontier", problem, "--html", "same", "--png", "same") == 2
    assert "--html: is --png" in capsys.readouterr().err
    assert problem.read_text() == before


def test_no_plan_is_for_more_than_the_problem_states(
    problem: Path, use: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """``check`` would refuse it."""
    asked = use(by_hand)
    problem.write_text(json.dumps({**chain(6, MEGABYTE), "budget_bytes": 6 * MEGABYTE}))
    assert run("plan", problem, "--budget", "8MB") == 2
    said = capsys.readouterr().err
    assert "--budget: 7.63 MiB is more than the 5.72 MiB that the problem states" in said and "6000000" in said
    assert run("frontier", problem, "--budgets", "4MB,8MB", "--no-picture") == 2
    assert "--budgets: 7.63 MiB is more than" in capsys.readouterr().err
    assert asked == []
    for flags, means in (([], 6 * MEGABYTE), (["--budget", "6MB"], 6 * MEGABYTE), (["--budget", "4MB"], 4 * MEGABYTE)):
        assert run("plan", problem, *flags) == 0
        assert asked.pop().budget_bytes == means


def test_a_share_of_the_peak_as_budget(problem: Path, use: Any) -> None:
    asked = use(by_hand)
    assert run("plan", problem, "--budget", "50%") == 0
    # By hand: six results and the gradient that the loss makes.
    assert asked[0].budget_bytes == 7 * MEGABYTE // 2


def test_infeasible_is_three_and_says_what_to_relax(
    problem: Path, tmp_path: Path, use: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    why = MemoryInfeasibility(
        3 * MEGABYTE, 2 * MEGABYTE, "backward 2 (block)", (Blocker("forward 4", "block", MEGABYTE),)
    )
    use(lambda problem, cancelled: no_plan(chain(6, MEGABYTE), MEGABYTE, why))
    output = tmp_path / "plan.json"
    assert run("plan", problem, "--budget", "1MB", "-o", output) == 3
    out, err = capsys.readouterr()
    assert "infeasible" in out and "3000000 bytes" in out and out.count("forward 4") == 1
    assert "forward 4" not in err and "3000000" not in err, "it is said once"
    assert read_plan(output).infeasibility == why
    for flags in (["--json"], ["-o", "-"]):
        assert run("plan", problem, "--budget", "1MB", *flags) == 3
        out, err = capsys.readouterr()
        assert json.loads(out)["infeasibility"]["minimum_budget_bytes"] == 3000000
        assert "3000000 bytes" in err and "forward 4" in err


def test_a_limit_without_a_plan_is_four(problem: Path, use: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(problem: MemoryProblem, cancelled: Callable[[], bool]) -> MemoryPlan:
        raise LimitReachedError("no plan was found within 1 s")

    use(fail)
    assert run("plan", problem, "--budget", "8MB") == 4
    assert "within 1 s" in capsys.readouterr().err


def test_an_interrupt_keeps_the_incumbent(
    problem: Path, tmp_path: Path, use: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(problem: MemoryProblem, cancelled: Callable[[], bool]) -> MemoryPlan:
        assert not cancelled()
        os.kill(os.getpid(), signal.SIGINT)
        assert cancelled()
        return plan_by_hand(chain(6, MEGABYTE), BUDGET, stopped_by="cancel")

    use(interrupted)
    before = signal.getsignal(signal.SIGINT)
    output = tmp_path / "plan.json"
    assert run("plan", problem, "--budget", "8MB", "-o", output) == 130
    assert read_plan(output).stopped_by == "cancel"
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_interrupt_ends_the_command(problem: Path, use: Any) -> None:
    def stubborn(problem: MemoryProblem, cancelled: Callable[[], bool]) -> MemoryPlan:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("the second interrupt did not get through")

    use(stubborn)
    assert run("plan", problem, "--budget", "8MB") == 130


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["problem.json"], "--budget: is missing, and the problem states none"),
        (["missing.json", "--budget", "8MB"], "no such file"),
        (["problem.json", "--budget", "8mb"], "Write 8MB"),
        (["problem.json", "--budget", "8MB", "--gap", "2"], "--gap: is more than 100%"),
        (["problem.json", "--budget", "8MB", "--time-limit", "-1"], "--time-limit: "),
        (["problem.json", "--budget", "8MB", "--gap", "lots"], "--gap: is neither"),
        (["problem.json", "--budget", "8MB", "--gap", "-1%"], "--gap"),
        (["problem.json", "--budget", "8MB", "--memory-limit", "1kB"], "--memory-limit: "),
        (["problem.json", "--budget", "8MB", "--solver", "abacus"], "--solver: is no solver"),
        (["problem.json", "--budget", "8MB", "--method", "prayer"], "--method: is no method"),
        (["problem.json", "--budget", "8MB", "--method", "greedy"], "--method: is no method for memory"),
        (["problem.json", "--budget", "8MB", "-o", "no/such/folder.json"], "does not exist"),
        (["problem.json", "--budget", "8MB", "--seed", "x"], "invalid int"),
        ([], "required"),
    ],
)
def test_bad_input_is_two(
    arguments: list[str],
    says: str,
    problem: Path,
    use: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    use(by_hand)
    monkeypatch.chdir(problem.parent)
    assert run("plan", *arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and says in err


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(write_plan(plan_by_hand(chain(6, MEGABYTE), BUDGET))))
    return path


def test_check_passes_a_good_plan(problem: Path, plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", problem, plan) == 0
    assert capsys.readouterr().out.startswith("passed")
    assert run("check", problem, plan, "--json") == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"budget_bytes": 1000}, "over the budget"),
        ({"objective": 1.0}, "objective: the plan says 1.0, recomputed 33200.0"),
        ({"bound": 1e9}, "bound: the plan says 1000000000.0, above its own objective of 33200.0"),
        ({"gap": 0.05}, "gap: the plan says 0.05, recomputed 0."),
        ({"status": "optimal"}, "status: the plan says 'optimal', recomputed 'feasible'"),
        ({"unconstrained": 1.0}, "unconstrained: the plan says 1.0, recomputed 18200.0"),
        ({"check": {"ok": True, "peak_bytes": 1}}, f"check.peak_bytes: the plan says 1, recomputed {PEAK}"),
    ],
)
def test_check_refuses_a_bad_plan(
    change: dict[str, Any], says: str, problem: Path, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan.write_text(json.dumps(json.loads(plan.read_text()) | change))
    assert run("check", problem, plan) == 1
    assert says in capsys.readouterr().out
    assert run("check", problem, plan, "--json") == 1
    assert json.loads(capsys.readouterr().out)["violations"]


@pytest.mark.parametrize(
    ("stated", "claimed", "status"),
    [(PEAK - 1, PEAK, 1), (PEAK - 1, BUDGET, 1), (PEAK, BUDGET, 0), (BUDGET, PEAK, 0), (BUDGET, PEAK - 1, 1)],
)
def test_check_holds_a_plan_to_the_budget_of_its_problem_too(
    stated: int, claimed: int, status: int, problem: Path, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan may fit what it says it was made for, and not what the problem allows."""
    problem.write_text(json.dumps(json.loads(problem.read_text()) | {"budget_bytes": stated}))
    plan.write_text(json.dumps(json.loads(plan.read_text()) | {"budget_bytes": claimed}))
    assert run("check", problem, plan) == status
    assert ("over the budget" in capsys.readouterr().out) == (status == 1)


def test_check_of_a_plan_of_another_kind_is_bad_input(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ring = tmp_path / "ring.json"
    assert run("new", "collective", "--topology", "dgx2", "--collective", "allgather", "-o", ring) == 0
    assert run("check", ring, plan) == 2
    assert "is another kind than the problem's, collective" in capsys.readouterr().err


def test_check_of_another_problem_is_bad_input(problem: Path, plan: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(json.dumps(chain(5, MEGABYTE)))
    assert run("check", other, plan) == 2


def test_show_finds_the_problem_beside_the_plan(problem: Path, plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (plan.parent / "broken.json").write_text("{")
    (plan.parent / "other.json").write_text(json.dumps(chain(5, MEGABYTE)))
    assert run("show", plan) == 0
    out, err = capsys.readouterr()
    assert err == ""
    # By hand: results 1 to 5 are computed again, 0 is kept.
    assert re.search(r"recomputed +4\.77 MiB", out)
    assert "kept" in out


def test_show_writes_report_picture_trace_and_snapshot(problem: Path, plan: Path, tmp_path: Path) -> None:
    files = {flag: tmp_path / f"out.{flag}" for flag in ("html", "png", "trace", "snapshot")}
    assert run("show", plan, *(part for flag, path in files.items() for part in (f"--{flag}", str(path)))) == 0
    html = files["html"].read_text()
    assert "<svg" in html and "budget 7.63 MiB" in html
    assert not re.search(r"(src|href)=|@import|url\(", html), "the report must not fetch anything"
    assert files["png"].read_bytes().startswith(b"\x89PNG")
    trace = json.loads(files["trace"].read_text())
    document = json.loads(plan.read_text())
    computes = sum(len(stage["computes"]) for stage in document["schedule"]["stages"])
    slices = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert len(slices) == computes + len(document["schedule"]["stages"]) - 1
    ends = [0.0, *(e["ts"] + e["dur"] for e in slices)]
    assert all(e["ts"] >= end for e, end in zip(slices, ends, strict=False))
    assert max(e["args"]["resident_bytes"] for e in trace["traceEvents"] if e["name"] == "memory") <= BUDGET
    assert pickle.loads(files["snapshot"].read_bytes()).keys() >= {"segments", "device_traces"}


def test_show_without_the_problem_still_speaks(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", plan) == 0
    out, err = capsys.readouterr()
    assert "gap 10.00 %" in out
    assert "its problem is not next to it" in err and "--problem" in err
    assert run("show", plan, "--html", "report.html") == 2
    assert "--problem" in capsys.readouterr().err


def test_show_refuses_the_problem_of_another_plan(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.json"
    other.write_text(json.dumps(chain(5, MEGABYTE)))
    assert run("show", plan, "--problem", other) == 2
    assert "--problem: is not the problem that this plan is for" in capsys.readouterr().err
    assert run("show", plan, "--trace", plan) == 2
    assert "--trace: is the plan" in capsys.readouterr().err


def test_show_json(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", plan, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert {**without_schedule(), **found} == found
    assert "schedule" not in found


def test_show_an_infeasible_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    why = MemoryInfeasibility(
        3 * MEGABYTE, 2 * MEGABYTE, "backward 2 (block)", (Blocker("forward 4", "block", MEGABYTE),)
    )
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(write_plan(no_plan(chain(6, MEGABYTE), MEGABYTE, why))))
    assert run("show", path) == 0
    assert "3000000 bytes" in capsys.readouterr().out
    assert run("show", path, "--png", "picture.png") == 2


def test_show_a_problem_says_how_much_it_needs(problem: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By hand: six results and the gradient that the loss makes; the step that keeps all runs each way once."""
    assert run("show", problem) == 0
    out, err = capsys.readouterr()
    assert "6.68 MiB (7000000 bytes) with nothing planned" in out and err == ""
    assert run("show", problem, "--json") == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["unconstrained_peak_bytes"] == 7 * MEGABYTE
    assert figures["problem_sha256"] == read_problem(problem).sha256
    for flags in (["--html", "r.html"], ["--problem", problem]):
        assert run("show", problem, *flags) == 2
        assert f"{flags[0]}: is for a plan, and this is a problem" in capsys.readouterr().err
