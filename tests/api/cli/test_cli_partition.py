"""``new``, ``plan``, ``check``, ``show`` and ``frontier`` on partition problems."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadmaster.api.cli import app
from loadmaster.models.kinds import read_problem
from loadmaster.models.partition.problem import PartitionProblem


def run(*arguments: str | Path) -> int:
    """Exit status of a command; argparse ends a process where main returns."""
    try:
        return app.main([str(a) for a in arguments])
    except SystemExit as end:
        return int(end.code or 0)


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("partition") / "problem.json"
    shape = ("--model", "gpt2", "--mesh", "2x2", "--gbps", "45,350", "--batch", "4", "--sequence", "64")
    assert run("new", "partition", *shape, "--hardware", "h100", "-o", path) == 0
    return path


def test_new_makes_what_was_asked_for(problem: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = read_problem(problem)
    assert isinstance(made, PartitionProblem)
    assert (made.name, made.objective, made.replicas, made.budget_bytes) == ("gpt2", "time", True, 80 << 30)
    assert [(a.size, a.gbps) for a in made.axes] == [(2, 45.0), (2, 350.0)]
    assert made.tensors[0].shape == (4, 64)
    tofu = ("--objective", "bytes", "--no-replicas", "--budget", "1GiB")
    assert run("new", "partition", "--model", "rnn-4-4k", "--mesh", "2", *tofu) == 0
    written = json.loads(capsys.readouterr().out)
    assert (written["objective"], written["replicas"], written["budget_bytes"]) == ("bytes", False, 1 << 30)


def test_from_a_plan_to_its_tables(problem: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.json"
    assert run("plan", problem, "-o", plan) == 0
    assert run("check", problem, plan) == 0
    html, table = tmp_path / "plan.html", tmp_path / "plan.csv"
    capsys.readouterr()
    assert run("show", plan, "--problem", problem, "--html", html, "--csv", table) == 0
    out = capsys.readouterr().out
    assert "axis0 (2)" in out and "layer.up.weight" in out
    assert "How tensors are split" in html.read_text()
    assert table.read_text().startswith("tensor,role,shape,axis0,axis1\n")
    assert run("show", problem) == 0
    assert "on one GPU" in capsys.readouterr().out


def test_gpus_that_are_not_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    made, plan = tmp_path / "problem.json", tmp_path / "plan.json"
    shape = ("--model", "gpt2", "--mesh", "2x2", "--batch", "6", "--sequence", "64", "--hardware", "h100")
    assert run("new", "partition", *shape, "--speeds", "1x2,1", "--memory", "1x80,40", "-o", made) == 0
    assert not caplog.text
    assert run("plan", made, "-o", plan) == 0
    capsys.readouterr()
    assert run("show", plan, "--problem", made, "--html", tmp_path / "plan.html") == 0
    out = capsys.readouterr().out.splitlines()
    assert any(line.endswith("on one GPU at most") for line in out)
    rows = [line.split()[:4] + line.split()[-2:] for line in out if line.strip().startswith("1/2 x ")]
    assert rows == [["1/2", "x", "2/3", "2", "80.0", "GiB"], ["1/2", "x", "1/3", "2", "40.0", "GiB"]]
    assert "GPUs that differ" in (tmp_path / "plan.html").read_text()
    assert run("show", made) == 0
    assert "speeds 2:1, shares 2:1, memory 1:0.5" in capsys.readouterr().out
    assert run("new", "partition", *shape, "--weights", "1x5,3", "-o", made) == 0
    assert "axis1 has shares of 8 units, which do not divide dimension 0 of the input of shape [6, 64]" in caplog.text


def test_too_small_a_budget_is_three(problem: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", problem, "--budget", "100MB") == 3
    assert "largest" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--model", "gpt9", "--mesh", "2"), "--model: is no known model (found 'gpt9'). Did you mean gpt2?"),
        (("--model", "gpt2", "--mesh", "3y"), "--mesh"),
        (("--model", "gpt2", "--mesh", "2x2", "--speeds", "1x2,1,1"), "--speeds: is for 3 GPUs on axis 1"),
        (("--model", "gpt2", "--mesh", "2", "--latency-us", "soon"), "--latency-us: is no number"),
        (("--model", "gpt2", "--mesh", "2", "--batch", "0"), "--batch: is less than 1 (found 0)"),
    ],
)
def test_what_cannot_be_made(flags: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("new", "partition", *flags) == 2
    assert words in capsys.readouterr().err
