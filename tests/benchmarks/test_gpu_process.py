"""Processes of rows: what they find, how they end, and that one at a time is alone."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from torch._functorch import config as functorch_config
from torch._inductor import output_code

from benchmarks.gpu import process
from benchmarks.gpu.process import Turn, run_row
from loadmaster.executor.memory.fit import trial_runs

WORKER = """
import json, pathlib, sys, time
order = json.loads(sys.argv[1])
print("begins", flush=True)
time.sleep(order["sleeps_s"])
pathlib.Path(order["result"]).write_text(json.dumps({"step_us": 1.0}))
"""


@pytest.fixture
def measure(tmp_path: Path):
    (tmp_path / "worker.py").write_text(WORKER)
    path = os.pathsep.join([str(tmp_path), str(process.ROOT)])

    def run(sleeps_s: float = 0.0, module: str = "worker") -> dict:
        log = tmp_path / "logs" / "1.log"
        return run_row([module], {"sleeps_s": sleeps_s}, log, 5.0 - sleeps_s / 20, {"PYTHONPATH": path})

    return run


def test_a_row_is_what_its_process_wrote(measure) -> None:
    assert measure() == {"step_us": 1.0}
    # What an earlier process wrote there is not what this one found.
    assert "No module named nothing" in measure(module="nothing")["error"]


def test_a_process_that_takes_too_long_is_stopped(measure) -> None:
    assert measure(sleeps_s=60.0) == {"error": "ended: begins"}


def test_one_is_alone_at_a_time(tmp_path: Path) -> None:
    first, second = (Turn(str(tmp_path / "lock")) for _ in range(2))
    second.end()
    first.take()
    first.take()
    waits = threading.Thread(target=second.take)
    waits.start()
    waits.join(0.2)
    assert waits.is_alive()
    first.end()
    waits.join()
    assert second.waited_s >= 0.1 and first.waited_s < second.waited_s
    second.end()
    first.take()


def test_who_is_alone_runs_where_no_other_row_does(monkeypatch, tmp_path: Path) -> None:
    there, runs_on = set(range(16)), []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: there)
    monkeypatch.setattr(os, "sched_setaffinity", lambda thread, cores: runs_on.append((thread, set(cores))))
    Turn(None).take()
    assert not runs_on  # there are no others
    turn = Turn(str(tmp_path / "lock"))
    assert (os.getpid(), there - {0, 1, 2, 3}) in runs_on
    turn.take()
    assert runs_on[-1][1] == {0, 1, 2, 3}
    turn.end()
    assert runs_on[-1][1] == there - {0, 1, 2, 3}


def test_few_cores_are_shared(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: pytest.fail("there are none to leave"))
    Turn(str(tmp_path / "lock")).take()


def test_what_inductor_compiled_first_runs_alone_until_the_trial_is_measured(monkeypatch) -> None:
    heard: list = []
    graph, trials = output_code.CompiledFxGraph, trial_runs.run_trial
    monkeypatch.setattr(graph, "__call__", lambda _self, _inputs: heard.append("runs"))
    monkeypatch.setattr(trial_runs, "run_trial", lambda *_, warmed_up: (warmed_up(), heard.append("timed")))
    monkeypatch.setattr(trial_runs.TrialRuns, "alone", lambda _self, _step, look: (graph.__call__(None, []), look()))
    turn = Turn(None)
    monkeypatch.setattr(turn, "take", lambda: heard.append("take"))
    monkeypatch.setattr(turn, "end", lambda: heard.append("end"))
    # A configuration, unlike a module, forgets a value that monkeypatch puts back.
    with functorch_config.patch(force_non_lazy_backward_lowering=False):
        process.first_runs_alone(turn)
    graph.__call__(None, [])
    trial_runs.run_trial("step", warmed_up=lambda: heard.append("warm"))
    assert heard == ["take", "runs", "warm", "take", "timed", "end"]
    heard.clear()
    trial_runs.TrialRuns.alone(None, None, lambda: heard.append("looked"))
    assert heard == ["take", "runs", "looked", "end"]
    assert trials is not trial_runs.run_trial
