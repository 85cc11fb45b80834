"""Being alone: asked for once, and given back at the end."""

from __future__ import annotations

import io
import json
import os

import pytest
from torch._functorch import config as functorch_config
from torch._inductor import output_code

from benchmarks.gpu import talk, turns
from loadmaster.executor.memory.fit import trial_runs


def connected():
    """A link whose scheduler always agrees, and what has been said over it."""
    says = io.StringIO()
    link = talk.Link(io.StringIO("go\n" * 20), says)
    return link, lambda: [json.loads(line.removeprefix(talk.MARK))["say"] for line in says.getvalue().splitlines()]


def test_alone_is_asked_for_once_and_given_back_at_the_end():
    link, said = connected()
    with link.alone(), link.alone():
        assert said() == ["alone"]
    assert said() == ["alone", "done"]


def test_who_is_alone_runs_where_no_other_row_does(monkeypatch):
    there, runs_on = set(range(16)), []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: there)
    monkeypatch.setattr(os, "sched_setaffinity", lambda thread, cores: runs_on.append((thread, set(cores))))
    link, _ = connected()
    with link.alone():
        assert not runs_on  # it was not asked to leave any
    link.leave_cores()
    assert (os.getpid(), there - {0, 1, 2, 3}) in runs_on
    with link.alone(), link.alone():
        assert runs_on[-1][1] == {0, 1, 2, 3}
    assert runs_on[-1][1] == there - {0, 1, 2, 3}


def test_few_cores_are_shared(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: pytest.fail("there are none to leave"))
    link, said = connected()
    link.leave_cores()
    with link.alone():
        assert said() == ["alone"]


class Quiet(talk.Link):
    """A link whose scheduler agrees, and nobody hears."""

    def __init__(self, heard: list) -> None:
        super().__init__(io.StringIO("go\n" * 50), io.StringIO())
        self.heard = heard

    def say(self, word, **_):
        self.heard.append(word)


def test_a_turn_is_taken_once_and_ended_once():
    heard: list = []
    turn = talk.Turn(Quiet(heard))
    turn.end()
    turn.take()
    turn.still()
    turn.take()
    turn.end()
    turn.end()
    assert heard == ["alone", "still", "done"]


def test_what_inductor_compiled_first_runs_alone_and_a_trial_is_timed_while_all_stand_still(monkeypatch):
    heard: list = []
    graph, trials = output_code.CompiledFxGraph, trial_runs.run_trial
    monkeypatch.setattr(graph, "__call__", lambda _self, _inputs: heard.append("runs"))
    monkeypatch.setattr(trial_runs, "run_trial", lambda *_, warmed_up: (warmed_up(), heard.append("timed")))
    monkeypatch.setattr(trial_runs.TrialRuns, "alone", lambda _self, _step, look: (graph.__call__(None, []), look()))
    turn = talk.Turn(Quiet(heard))
    # A configuration, unlike a module, forgets a value that monkeypatch puts back.
    with functorch_config.patch(force_non_lazy_backward_lowering=False):
        talk.first_runs_alone(turn)
    graph.__call__(None, [])
    trial_runs.run_trial("step", warmed_up=lambda: heard.append("warm"))
    assert heard == ["alone", "runs", "warm", "still", "timed", "done"]
    heard.clear()
    trial_runs.TrialRuns.alone(None, None, lambda: heard.append("looked"))
    assert heard == ["alone", "runs", "looked", "done"]
    assert trials is not trial_runs.run_trial


class Standing:
    """A row's process that notes what it is told."""

    def __init__(self, name, events):
        self.name, self.events = name, events
        self.is_apart = False
        self.clock: dict = {}
        self.running_s = 7.0

    def tell(self, word):
        self.events.append((self.name, word))

    def freeze(self):
        self.events.append((self.name, "freeze"))

    def thaw(self):
        self.events.append((self.name, "thaw"))

    def last_words(self):
        return "killed"


def test_one_is_alone_at_a_time_and_others_stand_still_only_where_it_asks(monkeypatch):
    monkeypatch.setattr(turns, "SETTLE_S", 0.0)
    events: list = []
    served = turns.Turns()
    one, other = Standing("one", events), Standing("other", events)
    served.running += [one, other]

    def said(process, word, **facts):
        served.heard.put((process, {"say": word, **facts}))
        return served.next()

    said(one, "alone")
    said(other, "alone")
    assert events == [("one", "go")]
    said(one, "still")
    assert events[1:] == [("other", "freeze"), ("one", "go")]
    events.clear()
    said(one, "done")
    said(one, "clock", name="there")
    assert events == [("one", "thaw"), ("other", "thaw"), ("other", "go")]
    assert one.clock == {"there": 7.0}
    assert said(one, "row", step_us=1.0) == (one, {"step_us": 1.0})
    served.heard.put((other, None))
    assert served.next() == (other, {"error": "ended: killed"})
    served.forget(other)
    assert served.alone is None and served.running == [one]
