"""The commands that talk to a service, against a real one whose planner answers by hand."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from running_service import HANG_S, wait_until

from loadmaster.api.cli import app
from loadmaster.api.client import Client
from loadmaster.models.kinds import read_plan
from loadmaster.models.memory.presets import chain
from tests.api.cli.plans_by_hand import MEGABYTE, plan_by_hand

pytestmark = pytest.mark.slow  # a server is started

ROOT = Path(__file__).resolve().parents[3]


def run(*arguments: str | Path) -> int:
    """Exit status of a command; argparse ends a process where main returns."""
    try:
        return app.main([str(a) for a in arguments])
    except SystemExit as end:
        return int(end.code or 0)


@pytest.fixture
def service(start_service: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a service; it is also the default one."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    # A cancelled search hands its plan over in its own time, however busy the machine is.
    planner = "tests.api.cli.hand_planner:HandPlanner"
    url: str = start_service(planner=planner, workers=1, cancel_grace_s=600.0).url
    monkeypatch.setenv("LOADMASTER_SERVER", url)
    return url


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(chain(6, MEGABYTE)))
    return path


def test_plan_on_a_server(service: str, problem: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = problem.parent / "plan.json"
    assert run("plan", problem, "--budget", "8MB", "--server", service, "-o", output) == 0
    assert read_plan(output) == plan_by_hand(chain(6, MEGABYTE), 8 * MEGABYTE)
    out, err = capsys.readouterr()
    assert "gap 10.00 %" in out
    assert "submitted to" in err


def test_submit_watch_list(service: str, problem: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("submit", problem, "--budget", "8MB", "--label", "run=first") == 0
    plan_id = capsys.readouterr().out.strip()
    output = problem.parent / "plan.json"
    assert run("watch", plan_id, "-o", output) == 0
    assert read_plan(output).budget_bytes == 8 * MEGABYTE
    capsys.readouterr()
    assert run("list", "--label", "run=first") == 0
    assert plan_id in capsys.readouterr().out
    assert run("list", "--label", "run=second", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []


def test_compare_and_export(
    service: str, problem: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(problem.parent)
    with Client(service) as client:
        plan = client.submit(problem, {"budget_bytes": 16 * MEGABYTE})
        kept = client.submit(problem, {"budget_bytes": 8 * MEGABYTE}).document(HANG_S)
        plan.wait(HANG_S)
    (problem.parent / "kept.json").write_text(json.dumps(kept))
    assert run("compare", "kept.json", plan.id) == 0
    assert "+100.00 %" in capsys.readouterr().out
    assert run("export", plan.id, "trace") == 0
    trace = problem.parent / f"{plan.id}-trace.json"
    assert json.loads(trace.read_text())["traceEvents"]
    assert run("export", plan.id, "html", "-o", "report.html") == 0
    assert (problem.parent / "report.html").read_text().startswith("<!doctype html>")
    assert "report.html" in capsys.readouterr().err
    assert run("export", plan.id, "msccl") == 2
    assert "snapshot" in capsys.readouterr().err
    assert run("export", "plan_1", "html") == 2
    assert run("export", plan.id, "html", "-o", "nowhere/report.html") == 2


def test_infeasible_on_a_server(service: str, problem: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", problem, "--budget", "1MB", "--seed", "2", "--server", service) == 3
    assert "2000000 bytes" in capsys.readouterr().out


def test_cancel(service: str, problem: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("submit", problem, "--budget", "8MB", "--seed", "1") == 0
    plan_id = capsys.readouterr().out.strip()
    with Client(service) as client:
        for event in client.plan(plan_id).events():
            if event.type == "incumbent":
                break
        assert run("cancel", plan_id) == 0
        assert client.plan(plan_id).wait(HANG_S).state == "cancelled"
    assert run("watch", plan_id) == 130


def test_the_best_plan_so_far_of_a_job_that_runs(
    service: str, problem: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(problem.parent)
    with Client(service) as client:
        handle = client.submit(problem, {"budget_bytes": 8 * MEGABYTE, "seed": 1})
        assert run("show", handle.id) == 2
        assert "Give --incumbent for the best plan so far" in capsys.readouterr().err
        wait_until(lambda: "incumbent" in handle.state().links)
        assert run("show", handle.id, "--incumbent", "-o", "plan.json", "--html", "report.html") == 0
        shown = capsys.readouterr()
        assert "gap 10.00 %" in shown.out and "stopped by nothing" in shown.out
        assert read_plan(problem.parent / "plan.json") == handle.incumbent()
        assert (problem.parent / "report.html").read_text().startswith("<!doctype html>")
        assert run("export", handle.id, "trace", "--incumbent", "-o", "trace.json") == 0
        assert json.loads((problem.parent / "trace.json").read_text())["traceEvents"]
        assert run("export", handle.id, "trace") == 1
        handle.cancel()
        assert handle.wait(HANG_S).state == "cancelled"
    capsys.readouterr()
    for more in ([], ["--incumbent"]):
        assert run("show", handle.id, "--json", *more) == 0
        assert json.loads(capsys.readouterr().out)["stopped_by"] == "cancel"
    for refused in (["show", "plan.json", "--incumbent"], ["show", "plan.json", "-o", "other.json"]):
        assert run(*refused) == 2
        assert "is for a plan of a service" in capsys.readouterr().err
    assert run("show", handle.id, "--problem", "problem.json") == 2


@pytest.mark.slow
def test_an_interrupt_cancels_the_job_and_keeps_the_plan(service: str, problem: Path) -> None:
    output = problem.parent / "plan.json"
    command = [sys.executable, "-m", "loadmaster.api.cli", "plan", str(problem), "--budget", "8MB", "--seed", "1"]
    done: list[int] = []
    tells_where = {**os.environ, "PYTHONFAULTHANDLER": "1"}
    asked = [*command, "--server", service, "-o", str(output)]
    # Tests that run in the background of a shell ignore interrupts, and what they start would too.
    heeds = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(asked, cwd=ROOT, env=tells_where, preexec_fn=heeds) as process:
        waiting = threading.Thread(target=lambda: done.append(process.wait()))
        waiting.start()
        with Client(service) as client:
            while not any(plan.state == "running" and plan.objective for plan in client.list()):
                assert not done, "the command ended before it was interrupted"
            os.kill(process.pid, signal.SIGINT)
            waiting.join(30)
            if not done:
                os.kill(process.pid, signal.SIGABRT)  # it says where it stands, and no one waits for it forever
                waiting.join()
            assert done == [130]
            assert [plan.state for plan in client.list()] == ["cancelled"]
    assert read_plan(output).stopped_by == "cancel"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["watch", "nothing"], "nothing"),
        (["cancel", "no/such"], "id"),
        (["submit", "problem.json", "--budget", "8MB", "--label", "x"], "--label"),
        (["list", "--state", "asleep"], "state"),
        (["list", "--limit", "-3"], "--limit"),
    ],
)
def test_bad_input_is_two(
    arguments: list[str],
    says: str,
    service: str,
    problem: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(problem.parent)
    assert run(*arguments) == 2
    assert says in capsys.readouterr().err


@pytest.mark.slow
def test_no_service_is_an_error_that_says_how_to_start_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list", "--server", "http://127.0.0.1:9") == 1
    assert "loadmaster serve" in capsys.readouterr().err
