"""When the process of a job hands over its best plan: by a clock of the test's own."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from loadmaster.api.worker import best_plans
from loadmaster.api.worker.best_plans import BestPlans
from loadmaster.errors import CheckFailedError
from loadmaster.planner import PlanProgress


class Clock:
    """Stands still unless it is moved."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


class Parent:
    """Takes note of objectives that were sent."""

    def __init__(self) -> None:
        self.sent: list[float] = []
        self.reports = 0
        self.wants_no_more = False

    def progress(self, progress: PlanProgress) -> None:
        self.reports += 1

    def cancelled(self) -> bool:
        return self.wants_no_more

    def send(self, kind: str, content: Any) -> None:
        assert kind == "best_plan"
        objective, packed = content
        assert json.loads(zlib.decompress(packed.body)) == {"objective": objective}
        self.sent.append(objective)


class Search:
    """A planner and its clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.parent = Clock(), Parent()
        monkeypatch.setattr(best_plans, "time", self.clock)
        self.best = BestPlans(self.parent, lambda plan: {"objective": plan})
        self.made: list[float] = []

    def plan(self, objective: float, takes_s: float = 0.0) -> Callable[[], Any]:
        def make() -> Any:
            self.clock.now += takes_s
            self.made.append(objective)
            return objective

        return make

    def report(self, plan: Callable[[], Any] | None) -> None:
        self.best.progress(PlanProgress(0.0, "search", "", plan=plan))

    def later(self, seconds: float) -> None:
        """So much later the planner asks whether to stop."""
        self.clock.now += seconds
        self.best.cancelled()


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> Search:
    return Search(monkeypatch)


def test_what_ends_within_a_second_pays_nothing(search: Search) -> None:
    search.report(None)
    for objective in (30.0, 20.0):
        search.report(search.plan(objective))
    search.later(0.9)
    assert (search.made, search.parent.reports) == ([], 3)
    search.later(0.2)
    assert search.made == search.parent.sent == [20.0], "the last of them"


def test_two_are_seconds_apart_and_the_last_is_not_forgotten(search: Search) -> None:
    search.clock.now += 5.0
    search.report(search.plan(30.0))
    for objective in (20.0, 10.0):
        search.report(search.plan(objective))
    search.later(1.9)
    assert search.parent.sent == [30.0]
    search.later(0.2)
    assert search.parent.sent == search.made == [30.0, 10.0]
    search.later(60.0)
    assert search.made == [30.0, 10.0], "the same plan once"


def test_a_plan_that_takes_long_is_made_seldom(search: Search) -> None:
    search.clock.now += 5.0
    search.report(search.plan(30.0, takes_s=0.5))
    search.report(search.plan(20.0, takes_s=0.5))
    search.later(49.0)
    assert search.parent.sent == [30.0]
    search.later(1.1)
    assert search.parent.sent == [30.0, 20.0]


def test_none_is_sent_that_is_no_better(search: Search) -> None:
    for objective in (30.0, 30.0, 40.0, 20.0):
        search.clock.now += 5.0
        search.report(search.plan(objective))
    assert search.parent.sent == [30.0, 20.0]


def test_who_is_to_stop_makes_none(search: Search) -> None:
    """The plan of the end comes at once."""
    search.report(search.plan(30.0))
    search.parent.wants_no_more = True
    search.later(10.0)
    assert search.best.cancelled() and search.made == []


@pytest.mark.parametrize("error", [MemoryError(), CheckFailedError("it breaks the budget: please report it")])
def test_a_plan_that_cannot_be_made_does_not_end_the_search(
    search: Search, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> Any:
        raise error

    search.clock.now += 5.0
    search.report(broken)
    assert "no more plans are handed over" in caplog.text
    assert (str(error) or "out of memory") in caplog.text
    search.report(search.plan(10.0))
    search.later(1e6)
    assert search.parent.sent == search.made == []
