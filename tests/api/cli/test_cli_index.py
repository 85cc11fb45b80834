"""``new``, ``plan``, ``check``, ``show`` and ``frontier`` on index problems."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadmaster.api.cli import app
from loadmaster.models.index.generators import Mix, make_trace
from loadmaster.models.index.problem import IndexProblem
from loadmaster.models.index.trace import save_trace
from loadmaster.models.kinds import load_plan, read_problem


def run(*arguments: str | Path) -> int:
    """Exit status of a command; argparse ends a process where main returns."""
    try:
        return app.main([str(a) for a in arguments])
    except SystemExit as end:
        return int(end.code or 0)


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("index") / "problem.json"
    made = ("--distribution", "uniform", "--distribution", "clustered", "--shards", "6", "--keys", "2000")
    assert run("new", "index", *made, "--operations", "4000", "--inserts", "0.3", "--ordered", "-o", path) == 0
    return path


def test_new_makes_what_was_asked_for(problem: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = read_problem(problem)
    assert isinstance(made, IndexProblem)
    assert made.name == "index-uniform-clustered"
    assert [s.name for s in made.shards[:3]] == ["uniform-0", "clustered-1", "uniform-2"]
    assert all((s.keys, s.operations.inserts, s.ordered) == (2000, 1200, True) for s in made.shards)
    more = ("--hosts", "2", "--threads", "3", "--objective", "longest-thread", "--longest-pause-us", "1e5")
    mixed = ("--erases", "0.1", "--scans", "0.1", "--zipf", "--keys", "100", "--operations", "100", "--shards", "2")
    assert run("new", "index", "--distribution", "powers", *mixed, *more, "--budget", "1GiB") == 0
    written = read_problem(json.loads(capsys.readouterr().out))
    assert isinstance(written, IndexProblem)
    assert [(h.name, h.threads) for h in written.hosts] == [("host-0", 3), ("host-1", 3)]
    assert [s.host for s in written.shards] == [0, 1]
    assert (written.objective, written.longest_pause_us, written.budget_bytes) == ("longest-thread", 1e5, 1 << 30)
    assert (written.shards[0].operations.erases, written.shards[0].operations.scans) == (10, 10)


def test_shards_from_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, inserts in (("a", 0.0), ("b", 1.0)):
        save_trace(make_trace("uniform", 500, 100, Mix(inserts)), tmp_path / f"{name}.npz")
    paths = [tmp_path / "a.npz", tmp_path / "b.npz", tmp_path / "a.npz"]
    flags = [word for path in paths for word in ("--trace", str(path))]
    assert run("new", "index", *flags) == 0
    written = read_problem(json.loads(capsys.readouterr().out))
    assert isinstance(written, IndexProblem)
    assert [s.name for s in written.shards] == ["a-0", "b", "a-2"]
    assert [s.operations.inserts for s in written.shards] == [0, 100, 0]


def test_from_a_plan_to_its_tables(problem: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, html, table, png = (tmp_path / name for name in ("plan.json", "plan.html", "plan.csv", "plan.png"))
    assert run("plan", problem, "--budget", "90%", "-o", plan) == 0
    assert run("check", problem, plan) == 0
    capsys.readouterr()
    assert run("show", plan, "--problem", problem, "--html", html, "--csv", table, "--png", png) == 0
    out = capsys.readouterr().out
    assert "clustered-5" in out and "predicted" in out and "fragmented-log" in out
    assert "Where the time goes" in html.read_text()
    rows = table.read_text().splitlines()
    assert rows[0].startswith("shard,host,thread,configuration,measured,read_ns,write_ns,time_us,peak_bytes,predicted")
    assert rows[1].endswith(",,,,")  # nothing ran
    assert len(rows) == 7
    assert png.read_bytes().startswith(b"\x89PNG")
    assert run("show", problem) == 0
    assert "are predicted" in capsys.readouterr().out


def test_a_budget_that_is_too_small_says_the_least(
    problem: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "none.json"
    assert run("plan", problem, "--budget", "1000", "-o", plan) == 3
    out = capsys.readouterr().out
    found = load_plan(plan)
    least = found.infeasibility.minimum_budget_bytes  # type: ignore[attr-defined]
    assert str(least) in out and "host-0" in out and "clustered" in out
    assert run("plan", problem, "--budget", str(least), "-o", plan) == 0
    assert run("plan", problem, "--budget", str(least - 1), "-o", plan) == 3


def test_changes_are_told(problem: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(problem.read_text())
    document["shards"][0]["current"] = 0
    again, plan = tmp_path / "again.json", tmp_path / "plan.json"
    again.write_text(json.dumps(document))
    assert run("plan", again, "--budget", "100%", "-o", plan) == 0
    assert "changes" in capsys.readouterr().out
    assert run("show", plan, "--problem", again) == 0
    assert "pays for its rebuild" in capsys.readouterr().out


def test_a_frontier(problem: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "frontier.html"
    assert run("frontier", problem, "--count", "3", "--html", page, "--png", tmp_path / "frontier.png") == 0
    assert capsys.readouterr().out.count("optimal") == 3


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--distribution", "none"), "distribution"),
        (("--distribution", "uniform", "--keys", "0"), "--keys"),
        (("--distribution", "uniform", "--threads", "0"), "--threads"),
        (("--distribution", "uniform", "--inserts", "2"), "inserts"),
        (("--distribution", "uniform", "--longest-pause-us", "0"), "--longest-pause-us"),
        (("--trace", "missing.npz"), "missing.npz"),
    ],
)
def test_refusals(flags: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("new", "index", *flags) == 2
    assert named in capsys.readouterr().err
