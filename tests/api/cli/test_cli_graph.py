"""``new``, ``plan``, ``check``, ``show`` and ``frontier`` on graph problems."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadmaster.api.cli import app
from loadmaster.models.graph.problem import GraphProblem
from loadmaster.models.kinds import read_problem


def run(*arguments: str | Path) -> int:
    """Exit status of a command; argparse ends a process where main returns."""
    try:
        return app.main([str(a) for a in arguments])
    except SystemExit as end:
        return int(end.code or 0)


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graph") / "problem.json"
    assert run("new", "graph", "--model", "rgcn", "--dataset", "aifb", "--hardware", "h100", "-o", path) == 0
    return path


def test_new_makes_what_was_asked_for(problem: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = read_problem(problem)
    assert isinstance(made, GraphProblem)
    assert (made.name, made.training, made.element_bytes, made.budget_bytes) == ("rgcn-aifb", True, 4, 80 * 10**9)
    assert (made.statistics.rows("node"), made.statistics.rows("relation")) == (7_262, 104)
    more = ("--width", "16", "--out", "8", "--heads", "2", "--inference", "--first-layer", "--dtype", "bf16")
    features = ("--feature-bytes", "1KiB", "--feature-reads", "100", "--link-gbps", "25")
    assert run("new", "graph", "--model", "hgt", "--dataset", "aifb", *more, *features, "--budget", "1GiB") == 0
    written = read_problem(json.loads(capsys.readouterr().out))
    assert isinstance(written, GraphProblem)
    assert (written.training, written.feature_gradients, written.element_bytes) == (False, False, 2)
    assert written.program.types[0].shape == (16,)
    assert written.store is not None
    assert (written.store.row_bytes, written.store.reads, written.store.link_gbps) == (1024, 100, 25.0)
    assert written.budget_bytes == 1 << 30


def test_from_a_plan_to_its_tables(problem: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, html, table = tmp_path / "plan.json", tmp_path / "plan.html", tmp_path / "plan.csv"
    assert run("plan", problem, "-o", plan) == 0
    assert run("check", problem, plan) == 0
    capsys.readouterr()
    assert run("show", plan, "--problem", problem, "--html", html, "--csv", table) == 0
    out = capsys.readouterr().out
    assert "linear(" in out and "traverse of target" in out and "inline" in out
    assert "Where the time goes" in html.read_text()
    assert table.read_text().startswith("kernel,template,rows,over,stores,time_us,dram_bytes,flops\n")
    assert run("show", problem) == 0
    assert "edges for each node" in capsys.readouterr().out


def test_a_frontier_falls_with_the_budget(problem: Path, tmp_path: Path) -> None:
    written = tmp_path / "frontier.json"
    assert run("frontier", problem, "--count", "2", "--no-picture", "-o", written) == 0
    points = json.loads(written.read_text())["points"]
    times = [point["plan"]["objective"] for point in points]
    assert times == sorted(times, reverse=True)
    assert len(times) == 2


def test_too_small_a_budget_is_three(problem: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", problem, "--budget", "1MB") == 3
    assert "more are enough" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (("--model", "gpt2"), "model"),
        (("--dataset", "cora"), "dataset"),
        (("--hardware", "abacus"), "hardware"),
        (("--width", "0"), "--width"),
        (("--heads", "3"), "heads"),
        (("--seed", "-1"), "--seed"),
        (("--feature-reads", "5"), "--feature-reads"),
        (("--feature-bytes", "4", "--link-gbps", "0"), "--link-gbps"),
        (("--feature-bytes", "4", "--feature-reads", "-1"), "--feature-bytes"),
    ],
)
def test_a_wrong_flag_is_two_and_is_named(
    wrong: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # Of a flag given twice, argparse takes the last.
    assert run("new", "graph", "--model", "rgat", "--dataset", "aifb", *wrong) == 2
    assert named in capsys.readouterr().err
