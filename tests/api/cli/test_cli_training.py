"""``new``, ``plan``, ``check``, ``show`` and ``frontier`` on training problems."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from loadmaster.api.cli import app
from loadmaster.models.hardware import hardware
from loadmaster.models.kinds import read_problem
from loadmaster.models.placement.problem import Tier
from loadmaster.models.synthetic import SHAPES
from loadmaster.models.training.limits import least_bytes, peak_bytes
from loadmaster.models.training.problem import TrainingProblem
from tests.architecture.sources import ROOT

PAGE = ROOT / "docs" / "training.md"
SMALL = ("--model", "gpt2", "--batch", "2", "--sequence", "64")


def run(*arguments: str | Path) -> int:
    """Exit status of a command; argparse ends a process where main returns."""
    try:
        return app.main([str(a) for a in arguments])
    except SystemExit as end:
        return int(end.code or 0)


def read_training(source: Any) -> TrainingProblem:
    """A training problem from its document or file."""
    found = read_problem(source)
    assert isinstance(found, TrainingProblem)
    return found


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    path = tmp_path / "problem.json"
    assert run("new", "training", *SMALL, "--hardware", "a100-40gb", "-o", path) == 0
    return path


def test_new_makes_what_was_asked_for(problem: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = read_training(problem)
    assert (made.name, made.budget_bytes) == ("gpt2-b2-s64-a100-40gb", hardware("a100-40gb").memory_bytes)
    assert (made.host.to_gbps, made.host.capacity_bytes, made.clip_grad_norm) == (25.0, None, False)
    assert made.groups[0].host_update_us == pytest.approx(7 * made.groups[0].weight_bytes / 80e3)
    capsys.readouterr()
    host = ("--host-memory", "128GiB", "--host-update-gbps", "0", "--clip-grad-norm", "--micro-batches", "4")
    assert run("new", "training", *SMALL, "--optimizer", "sgd-momentum", *host, "--budget", "50%") == 0
    other = read_training(json.loads(capsys.readouterr().out))
    assert other.budget_bytes == peak_bytes(other) // 2
    assert (other.host.capacity_bytes, other.clip_grad_norm, other.micro_batches) == (128 << 30, True, 4)
    assert {group.host_update_us for group in other.groups} == {None}
    assert other.groups[0].state_bytes == other.groups[0].weight_bytes
    assert made.disk is None
    files = ("--disk-gbps", "6,12", "--disk-capacity", "2TB", "--disk-endurance", "3000TB")
    assert run("new", "training", *SMALL, *files) == 0
    disk = read_training(json.loads(capsys.readouterr().out)).disk
    assert disk == Tier("disk", 6.0, 12.0, capacity_bytes=2 * 10**12, endurance_bytes=3 * 10**15)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--model", "gpt-2"], "Did you mean gpt2?"),
        ([*SMALL, "--batch", "0"], "--batch"),
        ([*SMALL, "--sequence", "0"], "--sequence"),
        ([*SMALL, "--micro-batches", "0"], "--micro-batches"),
        ([*SMALL, "--host-memory", "1gb"], "Write 1GB"),
        ([*SMALL, "--host-update-gbps", "-1"], "--host-update-gbps"),
        ([*SMALL, "--host-update-gbps", "nan"], "--host-update-gbps"),
        ([*SMALL, "--disk-gbps", "6"], "--disk-gbps: is no pair of rates"),
        ([*SMALL, "--disk-gbps", "6,nan"], "--disk-gbps: is no pair of rates"),
        ([*SMALL, "--disk-gbps", "0,12"], "--disk-gbps: is no pair of rates"),
        ([*SMALL, "--disk-capacity", "1TB"], "Give --disk-gbps too"),
        ([*SMALL, "--disk-gbps", "6,12", "--disk-endurance", "1tb"], "Write 1TB"),
        ([*SMALL, "--optimizer", "adam"], "invalid choice"),
        ([*SMALL, "--hardware", "abacus"], "not in the catalogue"),
        ([*SMALL, "--budget", "50pct"], "--budget"),
        ([], "required"),
    ],
)
def test_bad_input_is_refused(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("new", "training", *arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err


def test_the_models_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("new", "training", "--list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [*SHAPES]
    assert "8.03" in next(line for line in lines if line.startswith("llama3-8b"))


def test_show_says_what_a_problem_needs(problem: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = read_training(problem)
    assert run("show", problem) == 0
    out = capsys.readouterr().out
    assert "layers 14, groups 13" in out and f"({peak_bytes(made)} bytes)" in out
    assert run("show", problem, "--json") == 0
    assert json.loads(capsys.readouterr().out)["least_budget_bytes"] == least_bytes(made)[0]


def test_from_problem_to_report(problem: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.json"
    assert run("plan", problem, "--budget", "80%", "--method", "by-hand", "--time-limit", "5", "-o", plan) == 0
    assert "resident" in capsys.readouterr().out
    assert run("check", problem, plan) == 0
    assert "passed" in capsys.readouterr().out
    files = {name: tmp_path / f"plan.{name}" for name in ("html", "png", "trace", "csv")}
    flags = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    assert run("show", plan, "--problem", problem, *flags) == 0
    out = capsys.readouterr().out
    assert "on the device" in out and "at the peak" in out
    assert files["html"].read_text().startswith("<!doctype html>")
    assert files["png"].read_bytes().startswith(b"\x89PNG")
    assert json.loads(files["trace"].read_text())["traceEvents"]
    assert len(files["csv"].read_text().splitlines()) == 1 + 13


def test_a_plan_that_was_tampered_with_fails(problem: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.json"
    assert run("plan", problem, "--budget", "100%", "--method", "plain", "-o", plan) == 0
    document = json.loads(plan.read_text())
    document["schedule"]["groups"][3]["update_after"] -= 1
    plan.write_text(json.dumps(document))
    capsys.readouterr()
    assert run("check", problem, plan) == 1
    assert "update_after" in capsys.readouterr().out


def test_no_plan_is_an_answer(problem: Path, capsys: pytest.CaptureFixture[str]) -> None:
    least, at = least_bytes(read_training(problem))
    assert run("plan", problem, "--budget", str(least - 1)) == 3
    out = capsys.readouterr().out
    assert "infeasible" in out and f"{least} bytes" in out and at in out


def test_a_frontier(problem: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    html, png = tmp_path / "frontier.html", tmp_path / "frontier.png"
    sweep = ("--budgets", "1%,80%,100%", "--method", "by-hand", "--time-limit", "3")
    assert run("frontier", problem, *sweep, "--html", html, "--png", png) == 0
    out = capsys.readouterr().out
    assert "over plain" in out and "infeasible" in out
    assert "everything on the device" in html.read_text()


def test_the_page_shows_what_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text("utf-8"), re.S)
    command, _ = (line for _, text in blocks for line in text.splitlines() if line.startswith("loadmaster new "))
    words, step = shlex.split(command)[1:], tmp_path / "step.json"
    assert run(*words[:-1], step) == 0
    capsys.readouterr()
    assert run("show", step) == 0
    assert capsys.readouterr().out == next(text for language, text in blocks if language == "text")


@pytest.mark.slow  # the real planner; the page's first block needs a GPU
def test_the_python_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    _, block = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.S)
    exec(compile(block, PAGE.name, "exec"), {})
    assert "eight-layers under" in capsys.readouterr().out
