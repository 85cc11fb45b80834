"""``new``, ``plan``, ``check`` and ``show`` on placement problems."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadmaster.api.cli import app
from loadmaster.models.kinds import read_problem
from loadmaster.models.placement.limits import least_bytes, peak_bytes
from loadmaster.models.placement.problem import PlacementProblem


def run(*arguments: str | Path) -> int:
    """Exit status of a command; argparse ends a process where main returns."""
    try:
        return app.main([str(a) for a in arguments])
    except SystemExit as end:
        return int(end.code or 0)


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    path = tmp_path / "problem.json"
    sizes = ("--activation-bytes", "4MB", "--parameter-bytes", "2MB", "--host-gbps", "10")
    assert run("new", "placement", "--chain", "3", "--time-us", "400", *sizes, "-o", path) == 0
    return path


def test_new_makes_what_was_asked_for(chain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problem = read_problem(chain)
    assert isinstance(problem, PlacementProblem)
    assert (problem.name, len(problem.operators), problem.budget_bytes) == ("training-chain-3", 11, None)
    assert (problem.tiers[0].to_gbps, problem.operators[0].time_us) == (10.0, 400.0)
    assert problem.blocks[2].size_bytes == 4_000_000
    shape = ("--layers", "1", "--hidden", "64", "--sequence", "32", "--batch", "2", "--hardware", "a100-40gb")
    assert run("new", "placement", "--transformer", *shape, "--budget", "80%") == 0
    made = read_problem(json.loads(capsys.readouterr().out))
    assert isinstance(made, PlacementProblem)
    assert made.name == "training-l1-h64-s32-b2-a100-40gb"
    assert made.budget_bytes == int(0.8 * peak_bytes(made))
    assert made.tiers[0].to_gbps == 25.0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--chain", "0"], "--chain"),
        (["--chain", "3", "--activation-bytes", "1gb"], "Write 1GB"),
        (["--chain", "3", "--parameter-bytes", "1B"], "--parameter-bytes"),
        (["--chain", "3", "--time-us", "-1"], "time_us"),
        (["--chain", "3", "--host-gbps", "0"], "tiers[0].to_gbps"),
        (["--transformer", "--hidden", "0"], "--hidden"),
        (["--transformer", "--hardware", "abacus"], "not in the catalogue"),
        (["--chain", "3", "--transformer"], "not allowed with"),
        ([], "required"),
    ],
)
def test_bad_input_is_refused(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("new", "placement", *arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err


def test_from_problem_to_report(chain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.json"
    assert run("plan", chain, "--budget", "80%", "--method", "greedy", "--time-limit", "5", "-o", plan) == 0
    assert "loaded" in capsys.readouterr().out
    assert run("check", chain, plan) == 0
    assert "passed" in capsys.readouterr().out
    html, png, trace = tmp_path / "plan.html", tmp_path / "plan.png", tmp_path / "trace.json"
    assert run("show", plan, "--html", html, "--png", png, "--trace", trace) == 0
    out = capsys.readouterr().out
    assert "moves most" in out and "away" in out
    assert html.read_text().startswith("<!doctype html>")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert json.loads(trace.read_text())["traceEvents"]


def test_a_plan_that_was_tampered_with_fails(chain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.json"
    assert run("plan", chain, "--budget", "80%", "--method", "greedy", "--time-limit", "5", "-o", plan) == 0
    document = json.loads(plan.read_text())
    document["moves"]["stores"] = document["moves"]["stores"][1:]
    plan.write_text(json.dumps(document))
    capsys.readouterr()
    assert run("check", chain, plan) == 1
    assert "has no store before it that holds what is read again" in capsys.readouterr().out


def test_no_plan_is_an_answer(chain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    least, at = least_bytes(read_problem(chain))
    assert run("plan", chain, "--budget", str(least - 1)) == 3
    out = capsys.readouterr().out
    assert "infeasible" in out and f"({least} bytes)" in out and f"operator {at} " in out


def test_show_says_what_a_problem_needs(chain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", chain) == 0
    out = capsys.readouterr().out
    assert "operators 11, blocks" in out and "state" in out
    assert run("show", chain, "--json") == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["least_budget_bytes"] == least_bytes(read_problem(chain))[0]


def test_a_frontier(chain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    html, png = tmp_path / "frontier.html", tmp_path / "frontier.png"
    sweep = ("--budgets", "1%,60%,100%", "--method", "greedy", "--time-limit", "3")
    assert run("frontier", chain, *sweep, "--html", html, "--png", png) == 0
    out = capsys.readouterr().out
    assert "over unlimited" in out and "infeasible" in out
    assert "memory to spare" in html.read_text()
