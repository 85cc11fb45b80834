"""``plan``, ``check``, ``show``, ``frontier`` and the service's commands, of a kind without a budget."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadmaster import planner
from loadmaster.api.cli import app
from loadmaster.models.kinds import KINDS, read_plan, read_problem, write_plan
from tests.api.collective_by_hand import plan_by_hand, ring_document

ROOT = Path(__file__).resolve().parents[3]
THREE_STEPS = "3.300 us"


def run(*arguments: str | Path) -> int:
    """Exit status of a command; argparse ends a process where main returns."""
    try:
        return app.main([str(a) for a in arguments])
    except SystemExit as end:
        return int(end.code or 0)


@pytest.fixture(autouse=True)
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    by_hand = f"{plan_by_hand.__module__}:{plan_by_hand.__name__}"
    monkeypatch.setitem(KINDS, "collective", replace(KINDS["collective"], plan=by_hand))


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(ring_document()))
    return path


@pytest.fixture
def plan(problem: Path) -> Path:
    path = problem.parent / "plan.json"
    assert run("plan", problem, "-o", path) == 0
    return path


def test_plan_says_what_it_found(problem: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", problem, "--method", "greedy") == 0
    out, _ = capsys.readouterr()
    assert "a ring: feasible" in out
    assert THREE_STEPS in out
    assert "ingress ports of a rank" in out
    assert run("plan", problem, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["objective"], found["unit"]) == ("collective", 3.3, "us")


def test_plans_without_any_schedule_say_why(problem: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = problem.parent / "none.json"
    assert run("plan", problem, "--seed", "2", "-o", output) == 3
    out, err = capsys.readouterr()
    assert "a ring: infeasible" in out
    assert (out + err).count("Chunk 1 cannot reach rank 0.") == 1
    assert run("show", output) == 0
    assert run("show", output, "--html", problem.parent / "none.html") == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "--budget", "5GiB"], "--budget"),
        (["plan", "--budget", "50%"], "--budget"),
        (["plan", "--method", "chen"], "--method: "),
        (["submit", "--budget", "5GiB"], "--budget"),
        (["frontier"], "no limit to sweep"),
        (["frontier", "--budgets", "1GiB,2GiB"], "--budgets"),
    ],
)
def test_what_means_nothing_is_refused(
    problem: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments[0], problem, *arguments[1:]) == 2
    _, err = capsys.readouterr()
    assert words in err
    assert "collective" in err


def test_a_method_of_another_kind_is_refused_for_memory_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("new", "memory", "--chain", "3", "-o", tmp_path / "chain.json") == 0
    assert run("plan", tmp_path / "chain.json", "--budget", "5GiB", "--method", "greedy") == 2
    assert "--method: " in capsys.readouterr().err


def test_check_passes_right_plans_and_fails_wrong_ones(
    problem: Path, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("check", problem, plan) == 0
    assert f"passed: 1 algorithms, 12 sends, {THREE_STEPS}" in capsys.readouterr().out
    document = json.loads(plan.read_text())
    document["algorithms"][0]["bound_by"] = "a dream"
    plan.write_text(json.dumps(document))
    assert run("check", problem, plan) == 1
    assert "algorithms[0].bound_by: the plan says 'a dream'" in capsys.readouterr().out
    document["algorithms"][0]["sends"][-1]["start_ns"] -= 1
    plan.write_text(json.dumps(document))
    assert run("check", problem, plan) == 1
    out, _ = capsys.readouterr()
    assert out.startswith("FAILED")
    assert "is there at" in out
    assert run("check", problem, plan, "--json") == 1
    verdict = json.loads(capsys.readouterr().out)
    assert (verdict["ok"], verdict["algorithms"]) == (False, 1)
    assert verdict["violations"]


def test_check_does_not_list_thousands_of_violations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problem, plan = tmp_path / "many.json", tmp_path / "wrong.json"
    problem.write_text(json.dumps(ring_document(ranks=8, size_bytes=8000)))
    assert run("plan", problem, "-o", plan) == 0
    document = json.loads(plan.read_text())
    for send in document["algorithms"][0]["sends"]:
        send["start_ns"] = 0
    plan.write_text(json.dumps(document))
    capsys.readouterr()
    assert run("check", problem, plan) == 1
    out, _ = capsys.readouterr()
    assert len(out.splitlines()) == 22
    assert "more (--json lists them all)" in out.splitlines()[-1]
    assert run("check", problem, plan, "--json") == 1
    assert len(json.loads(capsys.readouterr().out)["violations"]) > 50


def test_plans_of_other_problems_are_refused(problem: Path, plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = problem.parent / "other.json"
    other.write_text(json.dumps(ring_document(size_bytes=8000)))
    assert run("check", other, plan) == 2
    assert run("new", "memory", "--chain", "3", "-o", other) == 0
    assert run("check", other, plan) == 2
    assert "problem_sha256" in capsys.readouterr().err


def test_show_finds_the_problem_beside_the_plan(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run("show", plan) == 0
    out, _ = capsys.readouterr()
    assert "a ring: feasible" in out
    assert "4 of 8" in out  # links in use
    assert "100.00 %" in out
    assert run("show", plan, "--snapshot", plan.parent / "memory.pickle") == 2
    assert "--snapshot" in capsys.readouterr().err


@pytest.mark.slow
def test_through_a_service(
    start_service: Callable[..., Any],
    problem: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    service = start_service(planner="tests.api.collective_by_hand:HandFloor", workers=1).url
    output = problem.parent / "far.json"
    assert run("plan", problem, "--server", service, "-o", output) == 0
    assert "a ring: feasible" in capsys.readouterr().out
    assert run("check", problem, output) == 0
    capsys.readouterr()
    assert run("submit", problem, "--seed", "1", "--server", service) == 0
    submitted = capsys.readouterr().out.strip()
    assert run("watch", submitted, "--server", service) == 0
    capsys.readouterr()
    assert run("list", "--server", service, "--kind", "collective") == 0
    out, _ = capsys.readouterr()
    assert THREE_STEPS in out
    assert out.count("collective") == 2
    assert read_plan(output).problem_sha256 == read_problem(problem).sha256


def test_documents_of_plans_are_what_the_planner_gave(problem: Path, plan: Path) -> None:
    typed = read_problem(problem)
    assert json.loads(plan.read_text()) == json.loads(
        json.dumps(write_plan(plan_by_hand(typed, planner.PlanOptions())))  # type: ignore[arg-type]
    )
