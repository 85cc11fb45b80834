"""``tune``: traces run in a process of their own, are planned for here, and what ran is shown beside predictions."""

from __future__ import annotations

import csv
import io
import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadmaster import plan
from loadmaster.api.cli import app, executing
from loadmaster.api.cli import tune as command
from loadmaster.executor.command import Parent
from loadmaster.executor.index.command import of_shards
from loadmaster.executor.index.command import run as run_task
from loadmaster.models.index.generators import Mix, make_trace
from loadmaster.models.index.problem import Cost, IndexProblem
from loadmaster.models.index.trace import save_trace
from loadmaster.models.kinds import load_plan, read_problem
from tests import preloaded


def run(*arguments: str | Path) -> int:
    """Exit status of a command; argparse ends a process where main returns."""
    try:
        return app.main([str(a) for a in arguments])
    except SystemExit as end:
        return int(end.code or 0)


@pytest.fixture(autouse=True)
def two_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, keys, inserts in (("users", 3000, 0.5), ("items", 2000, 0.0)):
        save_trace(make_trace("uniform", keys, 2000, Mix(inserts)), f"{name}.npz")
    assert run("new", "index", "--trace", "users.npz", "--trace", "items.npz", "-o", "problem.json") == 0


@pytest.fixture
def quick_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process is a fork of one that has imported all it needs."""
    monkeypatch.setattr(executing, "subprocess", preloaded)


def costs_of(path: str) -> list[list[Cost | None]]:
    problem = read_problem(Path(path))
    assert isinstance(problem, IndexProblem)
    return [list(shard.costs) for shard in problem.shards]


def test_a_problem_and_its_traces_become_a_measured_plan(capfd: pytest.CaptureFixture[str]) -> None:
    """In a process that starts from nothing."""
    traces = ("--trace", "items.npz", "--trace", "users.npz")  # by their names
    assert run("tune", "problem.json", *traces, "--budget", "100%", "-o", "plan.json") == 0
    out, err = capfd.readouterr()
    assert "nothing else may be quicker" in err and "problem: plan.problem.json" in err
    assert "predicted)" in out and "measured" in out
    assert run("check", "plan.problem.json", "plan.json") == 0
    found: Any = load_plan("plan.json")
    for choice, before, after in zip(
        found.choices, costs_of("problem.json"), costs_of("plan.problem.json"), strict=True
    ):
        chosen, predicted = after[choice.candidate], before[choice.candidate]
        assert chosen is not None and chosen.measured and chosen.predicted is not None and predicted is not None
        assert chosen.predicted.read_ns.expected == pytest.approx(predicted.read_ns.expected, rel=1e-3)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_start")
def test_show_has_predicted_beside_measured(capfd: pytest.CaptureFixture[str]) -> None:
    made = ("--distribution", "clustered", "--shards", "2", "--keys", "1000", "--operations", "1500")
    assert run("tune", *made, "--budget", "64MiB", "-o", "plan.json", "--problem", "measured.json") == 0
    capfd.readouterr()
    files = ("--html", "plan.html", "--csv", "plan.csv", "--png", "plan.png")
    assert run("show", "plan.json", "--problem", "measured.json", *files) == 0
    out = capfd.readouterr().out
    assert "clustered-0" in out and "predicted)" in out and "times what was predicted" in out
    page = Path("plan.html").read_text()
    assert "Predicted against measured" in page and page.count("<circle") == sum(
        cost is not None and cost.measured for of in costs_of("measured.json") for cost in of
    )
    assert Path("plan.png").read_bytes().startswith(b"\x89PNG")
    found: Any = load_plan("plan.json")
    with Path("plan.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row, choice, costs in zip(rows, found.choices, costs_of("measured.json"), strict=True):
        cost = costs[choice.candidate]
        assert cost is not None and cost.predicted is not None and cost.predicted.write_ns is not None
        assert row["measured"] == "yes"
        assert float(row["predicted_read_ns"]) == pytest.approx(cost.predicted.read_ns.expected, abs=0.06)
        assert float(row["predicted_peak_bytes"]) == pytest.approx(cost.predicted.peak_bytes.expected, abs=0.6)
        # 15 % of 1500 operations are inserts.
        in_all = 1275 * cost.predicted.read_ns.expected + 225 * cost.predicted.write_ns.expected
        assert float(row["predicted_time_us"]) == pytest.approx(in_all / 1e3, abs=1e-3)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_start")
def test_traces_alone_are_a_problem_and_json_is_one_document(capfd: pytest.CaptureFixture[str]) -> None:
    traces = ("--trace", "users.npz", "--trace", "items.npz", "--threads", "2", "--objective", "longest-thread")
    assert run("tune", *traces, "--budget", "100%", "--json", "--problem", "measured.json") == 0
    document = json.loads(capfd.readouterr().out)
    problem: Any = read_problem(Path("measured.json"))
    assert document["problem_sha256"] == problem.sha256 and document["status"] in ("optimal", "feasible")
    assert [shard.name for shard in problem.shards] == ["users", "items"]
    assert (problem.hosts[0].threads, problem.objective) == (2, "longest-thread")


@pytest.mark.usefixtures("quick_start")
def test_too_little_memory_is_an_answer(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("tune", "--trace", "users.npz", "--budget", "10KiB", "-o", "plan.json") == 3
    out = capfd.readouterr().out
    assert "infeasible" in out and "works" in out
    assert load_plan("plan.json").status == "infeasible"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["problem.json", "--trace", "users.npz"], "--trace: are not as many as the 2 shards (found 1)"),
        (["problem.json", "--trace", "users.npz", "--trace", "other.npz"], "are not as many keys as items has, 2000"),
        (["problem.json", "--trace", "items.npz", "--trace", "other.npz"], "--trace: has the name of a shard"),
        (["--trace", "missing.npz"], "missing.npz"),
    ],
)
@pytest.mark.usefixtures("quick_start")
def test_traces_that_do_not_go_with_their_shards(
    arguments: list[str], text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    save_trace(make_trace("uniform", 2001, 10), "other.npz")
    assert run("tune", *arguments, "--budget", "1GiB") == 2
    assert text in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--trace", "users.npz"], "--budget: is missing"),
        (["problem.json", "--distribution", "uniform", "--budget", "1GiB"], "--distribution: says how to make"),
        (["problem.json", "--trace", "users.npz", "--hosts", "2", "--budget", "1GiB"], "--hosts: says how to make"),
        (["--trace", "users.npz", "--budget", "1GiB", "--seconds", "0"], "--seconds: is not above 0"),
        (["--trace", "users.npz", "--budget", "1GiB", "--most-operations", "0"], "--most-operations: is less"),
        (["--distribution", "uniform", "--budget", "1GiB", "--keys", "0"], "--keys: is less than 1"),
        (["--trace", "users.npz", "--budget", "1GiB", "-o", "nowhere/plan.json"], "does not exist"),
        (["problem.json", "--trace", "users.npz", "--budget", "1GiB", "-o", "problem.json"], "would be written over"),
        (["--trace", "users.npz", "--budget", "half"], "is not a size"),
    ],
)
@pytest.mark.usefixtures("quick_start")
def test_what_cannot_be_done_is_said(arguments: list[str], text: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("tune", *arguments) == 2
    assert text in capfd.readouterr().err


def test_traces_go_to_shards_by_name_or_by_order() -> None:
    few, many = make_trace("uniform", 10, 10), make_trace("uniform", 20, 10)
    problem: Any = read_problem(Path("problem.json"))
    assert of_shards(problem, [("items", few), ("users", many)]) == [many, few]
    assert of_shards(problem, [("a", few), ("b", many)]) == [few, many]
    renamed = replace(problem, shards=tuple(replace(s, name=f"shard {n}") for n, s in enumerate(problem.shards)))
    assert of_shards(renamed, [("users", few), ("items", many)]) == [few, many]


def test_an_interrupt_ends_the_runs() -> None:
    """It comes while the first plan is made; nothing runs after it, and that plan is the answer."""
    told: list[dict[str, Any]] = []

    class Interrupting(Parent):
        def tell(self, message: Any) -> None:
            told.append(message)

        def plan(self, problem: Any) -> Any:
            signal.raise_signal(signal.SIGINT)
            return plan(problem, budget_bytes=1 << 30)

    before = signal.getsignal(signal.SIGINT)
    task = {"traces": ["users.npz", "items.npz"], "problem": json.loads(Path("problem.json").read_text())}
    try:
        run_task({**task, "seconds": 1e6, "most_operations": 10}, Interrupting(io.StringIO(), io.StringIO()))
    finally:
        signal.signal(signal.SIGINT, before)
    (tuned,) = told
    assert (tuned["tuned"]["stopped_by"], tuned["tuned"]["ran"]) == ("cancel", 0)


def test_what_was_cancelled_is_written_and_said(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def cancelled(function: str, task: Any, receive: Callable[[Any], Any]) -> int:
        assert function == "loadmaster.executor.index.command:main"
        answer = receive({"problem": task["problem"]})
        receive({"ran": {"shard": 0, "candidate": 0}})
        sha256 = answer["plan"]["problem_sha256"]
        receive({"tuned": {"problem_sha256": sha256, "stopped_by": "cancel", "rounds": 1, "ran": 1}})
        return 0

    monkeypatch.setattr(command, "converse", cancelled)
    traces = ("--trace", "users.npz", "--trace", "items.npz")
    assert run("tune", "problem.json", *traces, "--budget", "100%", "-o", "plan.json") == 130
    err = capfd.readouterr().err
    assert "1 runs after 1 plans: cancelled" in err
    assert run("check", "plan.problem.json", "plan.json") == 0


def test_an_early_interrupt_leaves_nothing(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "converse", lambda *_: 130)
    assert run("tune", "--trace", "users.npz", "--budget", "1GiB", "-o", "plan.json") == 130
    assert "before there was a plan" in capfd.readouterr().err and not Path("plan.json").exists()
