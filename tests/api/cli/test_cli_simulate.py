"""``simulate``: policies on a trace, and a plan beside them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadmaster.api.cli import app
from loadmaster.models.kinds import read_problem, write_plan, write_problem
from loadmaster.models.memory.presets import chain
from loadmaster.models.placement.limits import least_bytes
from loadmaster.models.placement.plan import Absence, Moves, Store
from tests.models.placement.tiny import KB, plan_of, trace

# As in tests/api/test_report_placement.py: every step takes 31 us, of which operators run 20.
PROBLEM = trace([("A", "A"), ("B", "")], [4, 3])
PLAN = plan_of(PROBLEM, Moves((Store(0, 0, 1),), (Absence(0, 0, 1, 2), Absence(1, 0, 0, 1))), 4 * KB, 31.0)


def run(*arguments: str | Path) -> int:
    """Exit status of a command; argparse ends a process where main returns."""
    try:
        return app.main(["simulate", *map(str, arguments)])
    except SystemExit as end:
        return int(end.code or 0)


@pytest.fixture
def given(tmp_path: Path) -> Path:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(write_problem(PROBLEM)))
    return path


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(write_plan(PLAN)))
    return path


def policies(capsys: pytest.CaptureFixture[str]) -> dict[str, float]:
    return {row["policy"]: row["step_us"] for row in json.loads(capsys.readouterr().out)["policies"]}


def test_a_table_of_policies(given: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(given, "--budget", "4kB", "--policy", "lru") == 0
    out = capsys.readouterr().out
    head, _, header, row = out.rstrip().split("\n")
    assert head == "tiny under 3.91 KiB; with memory to spare a step takes 20.00 us"
    assert header.split()[:2] == ["policy", "step"]
    assert row.split() == [
        "lru",
        "31.00",
        "us",
        "1.550",
        "x",
        "11.00",
        "us",
        "2",
        "3.91",
        "KiB",
        "6.84",
        "KiB",
        "2.93",
        "KiB",
        "3.91",
        "KiB",
    ]


def test_all_policies_and_the_plan_that_is_given(given: Path, plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(given, "--budget", "4kB", "--json") == 0
    assert list(policies(capsys)) == ["lru", "belady", "correlation"]
    assert run(given, "--budget", "4kB", "--json", "--plan", plan) == 0
    found = policies(capsys)
    assert list(found) == ["lru", "belady", "correlation", "plan"]
    assert found["plan"] == 31.0


def test_a_report(given: Path, plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    html = tmp_path / "report.html"
    assert run(given, "--budget", "80%", "--policy", "correlation", "plan", "lru", "--plan", plan, "--html", html) == 0
    page = html.read_text()
    assert page.startswith("<!doctype html>") and "Where each policy waits" in page
    assert capsys.readouterr().err == f"html: {html}\n"


def test_a_plan_is_made_where_none_is_given(given: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(given, "--budget", "4kB", "--policy", "plan", "lru", "plan", "--json", "--time-limit", "3") == 0
    found = policies(capsys)
    assert list(found) == ["plan", "lru"]
    assert found["plan"] <= found["lru"] == 31.0


def test_without_a_plan_there_is_none_to_follow(given: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(given, "--budget", "3999B", "--policy", "plan") == 3
    out, err = capsys.readouterr()
    assert out == "" and "no plan fits" in err


def test_the_budget_of_the_trace_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({**write_problem(PROBLEM), "budget_bytes": 4 * KB}))
    assert run(path, "--json", "--policy", "lru") == 0
    assert policies(capsys) == {"lru": 31.0}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "--budget: is missing"),
        (["--budget", "1%"], f"--budget: .*({least_bytes(PROBLEM)[0]} bytes) are needed for operator 0 (op0)"),
        (["--budget", "80%", "--policy", "mru"], "Choose of: lru, belady, correlation, plan."),
        (["--budget", "80%", "--policy", "lru", "--plan", "PLAN"], "of no policy that was asked for"),
        (["--budget", "80%", "--plan", "missing.json"], "no such file"),
        (["--budget", "80%", "--html", "missing/report.html"], "--html"),
        (["--budget", "80%", "--html", "TRACE"], "would be written over"),
    ],
)
def test_bad_input_is_refused(
    arguments: list[str], says: str, given: Path, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = {"PLAN": str(plan), "TRACE": str(given)}
    assert run(given, *(known.get(a, a) for a in arguments)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says.rpartition(".*")[2] in err


def test_a_plan_under_more_is_no_plan_under_less(
    given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "still.json"
    path.write_text(json.dumps(write_plan(plan_of(PROBLEM, Moves(), 7 * KB, 20.0))))
    assert run(given, "--budget", "4kB", "--plan", path) == 2
    assert "over the budget" in capsys.readouterr().err


def test_other_kinds_have_no_policies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(write_problem(read_problem(chain(3, 1024)))))
    assert run(path, "--budget", "80%") == 2
    assert "has no policies to simulate" in capsys.readouterr().err
