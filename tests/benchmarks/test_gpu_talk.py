"""Being alone: asked for once, and given back at the end."""

from __future__ import annotations

import io
import json
import os

import pytest

from benchmarks.gpu import talk


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
