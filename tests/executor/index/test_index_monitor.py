"""The monitor of indexes in use: what makes it plan again, when a change is made, and what stays as it was."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import pytest

from loadmaster.errors import InputError
from loadmaster.executor.index import FragmentedLog, GappedArray, HashTable, Index, Monitor
from loadmaster.models.index.configuration import Configuration
from loadmaster.models.index.plan import IndexPlan
from loadmaster.models.index.problem import IndexProblem, Operations, Shard
from loadmaster.planner.index.driver import plan_index
from loadmaster.planner.options import PlanOptions
from tests.models.index.index_instances import cost

KEYS = 20_000
# A read takes 1 us longer in the log, a write 9 us longer in the gapped array.
GAPPED, LOG = cost(1e3, 10e3, 1e6, rebuild_us=90_000.0), cost(2e3, 1e3, 1e6, rebuild_us=90_000.0)
PAYS_AFTER_WRITES = 10_000  # 90 ms at 9 us a write


class Planner:
    """Plans as the service does, and counts how often it is asked."""

    def __init__(self) -> None:
        self.asked: list[IndexProblem] = []

    def __call__(self, problem: IndexProblem) -> IndexPlan:
        self.asked.append(problem)
        return plan_index(problem, PlanOptions(budget_bytes=1 << 40, gap=0.0))


class Case:
    """One shard that was planned for lookups, and the random work on it beside a dictionary."""

    def __init__(self, implementation: str, other: Configuration | None = None, limit_bytes: int | None = None) -> None:
        candidates = (GappedArray(), other or FragmentedLog(16, 16, 4))
        shard = Shard("ids", KEYS, Operations(lookups=1e6), costs=(GAPPED, LOG))
        self.problem = IndexProblem("store", candidates, (shard,))
        self.random = np.random.default_rng(5)
        keys = np.unique(self.random.integers(0, 1 << 62, KEYS))
        self.held = dict(zip(keys.tolist(), keys.tolist(), strict=True))
        self.index = Index(keys, keys, candidates[0], limit_bytes=limit_bytes)
        self.planner = Planner()

    def monitor(self, plan: Callable[[IndexProblem], IndexPlan] | None = None, leaves: int = 64) -> Monitor:
        planned = plan_index(self.problem, PlanOptions(budget_bytes=1 << 40))
        return Monitor(self.problem, planned, {"ids": self.index}, plan or self.planner, leaves=leaves)

    def read(self, count: int) -> None:
        self.index.lookup(self.random.integers(0, 1 << 62, count))

    def write(self, count: int) -> None:
        keys = self.random.choice(np.fromiter(self.held, np.int64), count, replace=False)
        self.index.upsert(keys, keys + 1)
        self.held.update(zip(keys.tolist(), (keys + 1).tolist(), strict=True))

    def is_right(self) -> bool:
        return dict(self.index.items()) == self.held


@pytest.fixture
def case(implementation: str) -> Case:
    return Case(implementation)


def test_work_as_planned_is_left_alone(case: Case) -> None:
    monitor = case.monitor()
    for _ in range(5):
        case.read(5000)
        case.write(100)
        checked = monitor.check()
        assert checked.drift < 0.05 and not checked.changed
    assert not case.planner.asked


def test_few_operations_are_not_judged(case: Case) -> None:
    monitor = case.monitor()
    case.write(500)
    assert monitor.check().drift == 0.0
    case.write(500)
    assert monitor.check().drift == 1.0


def test_a_short_burst_of_writes_changes_nothing(case: Case) -> None:
    monitor = case.monitor()
    case.write(PAYS_AFTER_WRITES // 2)
    assert not monitor.check().changed
    for _ in range(3):
        case.read(20_000)
        assert not monitor.check().changed
    # The burst is forgotten: half of what pays does not count twice.
    case.write(PAYS_AFTER_WRITES // 2 + 1000)
    assert not monitor.check().changed
    assert case.index.configuration == GappedArray()


def test_work_that_goes_on_changes_the_index_as_soon_as_that_pays(case: Case) -> None:
    monitor, batch, written = case.monitor(), 1000, 0
    while not monitor.check().changed:
        case.write(batch)
        written += batch
    assert PAYS_AFTER_WRITES <= written <= 1.1 * PAYS_AFTER_WRITES + 2 * batch
    assert len(case.planner.asked) <= 3
    assert case.index.configuration == FragmentedLog(16, 16, 4)
    assert case.is_right()


def test_leaves_change_some_at_a_check_and_answers_stay_right(implementation: str) -> None:
    if implementation == "numpy":
        pytest.skip("there are no leaves")
    case = Case(implementation)
    monitor = case.monitor(leaves=3)
    case.write(PAYS_AFTER_WRITES + 1000)
    left = [monitor.check().leaves_left]
    assert left[0] > 0 and case.index.facts().leaves_of.get("gapped-array", 0) > 0
    while left[-1]:
        case.read(100)
        left.append(monitor.check().leaves_left)
        assert case.is_right()
    assert left == sorted(left, reverse=True)
    assert set(case.index.facts().leaves_of) == {"fragmented-log"}


def test_back_again_when_the_work_turns_back(case: Case) -> None:
    monitor = case.monitor()
    case.write(PAYS_AFTER_WRITES + 1000)
    assert monitor.check().changed == {"ids": FragmentedLog(16, 16, 4)}
    case.read(200_000)
    assert monitor.check().changed == {"ids": GappedArray()}
    assert case.is_right()


def test_counters_go_on_when_the_index_is_made_again(implementation: str) -> None:
    case = Case(implementation, HashTable())
    monitor = case.monitor()
    case.write(PAYS_AFTER_WRITES + 1000)
    assert monitor.check().changed == {"ids": HashTable()}
    assert case.index.facts().inserts == PAYS_AFTER_WRITES + 1000
    case.write(5000)
    assert monitor.check().drift < 0.01
    assert case.is_right()


def test_an_index_at_its_limit_stays_and_says_so(implementation: str, caplog: pytest.LogCaptureFixture) -> None:
    case = Case(implementation, HashTable())
    size = case.index.size_bytes
    tight = Index(np.arange(10), np.arange(10), GappedArray(), limit_bytes=size)
    case.index = tight
    case.held = {n: n for n in range(10)}

    def no_memory(configuration: Configuration, leaves: int | None = None) -> int:
        raise InputError("limit_bytes", size, "would be passed", "Give more.")

    monitor = case.monitor()
    case.index.lookup(np.arange(10))
    for _ in range(3):
        case.index.upsert(np.zeros(PAYS_AFTER_WRITES, np.int64), np.zeros(PAYS_AFTER_WRITES, np.int64))
    tight.reconfigure = no_memory  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING):
        checked = monitor.check()
    assert not checked.changed and checked.leaves_left == 0
    assert "ids stays as it is" in caplog.text
    assert case.is_right()


def test_a_planner_that_fails_is_asked_again(case: Case) -> None:
    failures = [ConnectionError("the service is away")]

    def plan(problem: IndexProblem) -> IndexPlan:
        if failures:
            raise failures.pop()
        return case.planner(problem)

    monitor = case.monitor(plan)
    case.write(PAYS_AFTER_WRITES + 1000)
    with pytest.raises(ConnectionError):
        monitor.check()
    assert case.index.configuration == GappedArray() and case.is_right()
    case.write(1000)
    assert monitor.check().changed


def test_no_plan_within_the_budget_leaves_all_as_it_is(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    monitor = case.monitor(lambda problem: plan_index(problem, PlanOptions(budget_bytes=1)))
    case.write(PAYS_AFTER_WRITES + 1000)
    with caplog.at_level(logging.WARNING):
        assert not monitor.check().changed
    assert "keeps the budget" in caplog.text


def test_a_shard_without_an_index_is_refused(case: Case) -> None:
    planned = case.planner(case.problem)
    with pytest.raises(InputError, match=r"indexes: is missing .*ids"):
        Monitor(case.problem, planned, {}, case.planner)


def test_a_plan_of_another_problem_is_refused(case: Case) -> None:
    other = IndexProblem("other", (GappedArray(),), (Shard("ids", 7, Operations(lookups=1), costs=(GAPPED,)),))
    with pytest.raises(InputError, match="is no plan of store"):
        Monitor(case.problem, case.planner(other), {"ids": case.index}, case.planner)


def test_a_check_changes_one_leaf_at_least(case: Case) -> None:
    with pytest.raises(InputError, match=r"leaves: is less than 1"):
        case.monitor(leaves=0)
