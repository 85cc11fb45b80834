"""Being alone: asked for once, kept between trials that follow each other, given back before the scheduler's turn."""

from __future__ import annotations

import io
import json
import time

import pytest

from benchmarks.gpu import talk


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(talk, "BETWEEN_S", 0.05)


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


def test_trials_that_follow_each_other_are_one_time_alone():
    link, said = connected()
    for _ in range(3):
        with link.alone_with_more_to_come():
            pass
    assert said() == ["alone"]
    time.sleep(0.2)
    assert said() == ["alone", "done"]


def test_what_is_held_for_more_to_come_is_given_back_before_a_round():
    link, said = connected()
    with link.alone_with_more_to_come():
        pass
    with link.given():
        with link.alone():
            pass
        time.sleep(0.1)
        assert said() == ["alone", "done"]
    with link.alone():
        assert said() == ["alone", "done", "alone"]
