"""Planning by measurement: a planner that tries every choice, and runs whose figures are known beforehand."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.errors import InputError
from loadmaster.executor.index import FragmentedLog, GappedArray, HashTable, SortedArray, Tuned, tune
from loadmaster.executor.index.measuring import Measured
from loadmaster.models.index.configuration import Configuration
from loadmaster.models.index.plan import Choice, IndexInfeasibility, IndexPlan
from loadmaster.models.index.problem import Cost, Figure, Host, IndexProblem, Operations, Shard
from loadmaster.models.index.trace import INSERT, LOOKUP, Trace

MODULE = importlib.import_module("loadmaster.executor.index.tune")
CANDIDATES: tuple[Configuration, ...] = (
    GappedArray(),
    FragmentedLog(64, 256, 16),
    FragmentedLog(32, 64, 8),
    HashTable(),
    SortedArray(),
)
PLENTY = 1 << 30
# Read and write nanoseconds and bytes by (shard, candidate).
Truth = dict[tuple[int, int], tuple[float, float, int]]


def trace_of(keys: int, reads: int, writes: int) -> Trace:
    codes = np.array([LOOKUP] * reads + [INSERT] * writes, np.uint8)
    return Trace(np.arange(keys, dtype=np.uint64), codes, np.arange(len(codes), dtype=np.uint64))


def predicted(read: float, write: float, size: float, spread: float = 2.0) -> Cost:
    """With quantiles that far off; ``inf``: nothing is known of what it may come to."""

    def figure(value: float) -> Figure:
        return Figure(value, value / spread, value * min(spread, 10.0))

    return Cost(figure(read), figure(size), figure(write))


def measured(read: float, write: float, size: float) -> Cost:
    return Cost(Figure(read), Figure(size), Figure(write), measured=True)


def problem_of(*costs: tuple[Cost | None, ...], **more: object) -> IndexProblem:
    shards = tuple(
        Shard(f"s{s}", 10 + s, Operations(lookups=30.0, inserts=10.0), of, host=s % len(more.get("hosts", (0,))))  # type: ignore[arg-type]
        for s, of in enumerate(costs)
    )
    return IndexProblem("by hand", CANDIDATES[: len(costs[0])], shards, **more)  # type: ignore[arg-type]


def traces_of(problem: IndexProblem) -> list[Trace]:
    return [trace_of(shard.keys, 30, 10) for shard in problem.shards]


def figures(problem: IndexProblem, s: int, c: int) -> tuple[float, int] | None:
    """Nanoseconds of 30 reads and 10 writes, and bytes; None: refused."""
    shard, of, longest = problem.shards[s], problem.candidates[c], problem.longest_pause_us
    cost = shard.costs[c]
    if cost is None or not of.writable or (shard.ordered and not of.ordered):
        return None
    if longest is not None and cost.pause_us is not None and cost.pause_us.expected > longest:
        return None
    assert cost.write_ns is not None
    size = cost.peak_bytes.expected if cost.peak_bytes.upper is None else cost.peak_bytes.upper
    return 30 * cost.read_ns.expected + 10 * cost.write_ns.expected, int(np.ceil(size))


def by_brute_force(problem: IndexProblem, budget_bytes: int) -> IndexPlan:
    """The least sum of all choices that fit, one host or several."""
    shards = range(len(problem.shards))
    of = [{c: f for c in range(len(problem.candidates)) if (f := figures(problem, s, c))} for s in shards]
    best: tuple[float, tuple[int, ...]] | None = None
    for chosen in product(*of):
        held = [0] * len(problem.hosts)
        for s, c in enumerate(chosen):
            held[problem.shards[s].host] += of[s][c][1]
        total = sum(of[s][c][0] for s, c in enumerate(chosen))
        if max(held) <= budget_bytes and (best is None or total < best[0]):
            best = total, chosen
    plain = {"name": problem.name, "problem_sha256": problem.sha256, "unit": "us", "method": "all"}
    more = {"stopped_by": "method", "seconds": {}, "solver": {}, "check": {}, "budget_bytes": budget_bytes}
    if best is None:
        least = [0] * len(problem.hosts)
        for s in shards:
            least[problem.shards[s].host] += min(size for _, size in of[s].values())
        worst = int(np.argmax(least))
        why = IndexInfeasibility(least[worst], least[worst] - budget_bytes, problem.hosts[worst].name)
        return IndexPlan(status="infeasible", infeasibility=why, **plain, **more)  # type: ignore[arg-type]
    choices = tuple(Choice(c, of[s][c][0] / 1e3, of[s][c][1]) for s, c in enumerate(best[1]))
    return IndexPlan(status="optimal", objective=best[0] / 1e3, choices=choices, **plain, **more)  # type: ignore[arg-type]


def chosen(tuned: Tuned) -> list[int]:
    return [choice.candidate for choice in tuned.plan.choices]


class Runs:
    """In place of runs on an index: what is true of each, and how often it was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.truth: Truth = {}
        self.asked: list[tuple[int, int]] = []
        self.parts: list[int | None] = []
        self.second: Truth = {}
        monkeypatch.setattr(MODULE, "measure", self)

    def __call__(self, trace: Trace, of: Configuration, *, most_operations: int | None) -> Measured:
        at = len(trace.keys) - 10, CANDIDATES.index(of)
        self.asked.append(at)
        self.parts.append(most_operations)
        read, write, size = self.second.get(at, self.truth[at]) if at in self.asked[:-1] else self.truth[at]
        return Measured(len(trace.keys), 40, True, 5.0, read, write, None, size, 1.0)

    def tuned(self, problem: IndexProblem, budget_bytes: int = PLENTY, **more: object) -> Tuned:
        def plan(now: IndexProblem) -> IndexPlan:
            return by_brute_force(now, budget_bytes)

        return tune(problem, traces_of(problem), plan, **more)  # type: ignore[arg-type]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(monkeypatch)


def test_the_best_is_found_though_predictions_rank_it_second(runs: Runs) -> None:
    problem = problem_of((predicted(100, 100, 10), predicted(110, 110, 10), predicted(1000, 1000, 10)))
    runs.truth = {(0, 0): (120, 120, 12), (0, 1): (80, 80, 9)}
    tuned = runs.tuned(problem)
    assert (chosen(tuned), tuned.stopped_by) == ([1], "stable")
    # The third one is too far behind to run, whatever the machine: that of the others is a fifth off.
    assert runs.asked == [(0, 0), (0, 1)]
    cost = tuned.problem.shards[0].costs[1]
    assert cost is not None and cost.measured and cost.read_ns == Figure(80.0) and cost.peak_bytes == Figure(9.0)
    assert cost.predicted is not None and cost.predicted.read_ns == Figure(110.0, 55.0, 220.0)
    assert tuned.plan.problem_sha256 == tuned.problem.sha256
    assert tuned.plan.objective == pytest.approx(40 * 80 / 1e3)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), hosts=st.integers(1, 2), shards=st.integers(1, 3), budget_bytes=st.integers(4, 60))
def test_where_nothing_is_known_the_end_is_the_best_by_what_is_true(
    data: st.DataObject, hosts: int, shards: int, budget_bytes: int
) -> None:
    """Predictions may be any: with quantiles from 0 on, all that may change the plan runs, and at most twice."""
    drawn = st.tuples(st.integers(1, 50), st.integers(1, 50), st.integers(1, 20))
    truth = {(s, c): data.draw(drawn) for s in range(shards) for c in range(4)}
    told = tuple(tuple(predicted(*data.draw(drawn), spread=np.inf) for _ in range(4)) for _ in range(shards))
    problem = problem_of(*told, hosts=tuple(Host(f"h{h}") for h in range(hosts)))
    with pytest.MonkeyPatch.context() as patch:
        runs = Runs(patch)
        runs.truth = truth
        tuned = runs.tuned(problem, budget_bytes)
    assert len(runs.asked) == len(tuned.ran) and all(runs.asked.count(at) <= 2 for at in runs.asked)
    assert tuned.stopped_by == "stable" and len(tuned.rounds) <= 1 + 2 * 4 * shards
    costs = (tuple(measured(*truth[s, c]) for c in range(4)) for s in range(shards))
    as_true = tuple(replace(shard, costs=of) for shard, of in zip(problem.shards, costs, strict=True))
    best = by_brute_force(replace(problem, shards=as_true), budget_bytes)
    assert tuned.plan.status == best.status
    assert tuned.plan.objective == (None if best.objective is None else pytest.approx(best.objective))


def test_refused_candidates_never_run(runs: Runs) -> None:
    """By the problem, by the pause, for want of order, for writes."""
    good = predicted(1, 1, 1, np.inf)
    pausing = replace(good, pause_us=Figure(60.0))
    problem = problem_of((predicted(100, 100, 10), None, pausing, good, good), longest_pause_us=50.0)
    problem = replace(problem, shards=(replace(problem.shards[0], ordered=True),))
    runs.truth = {(0, 0): (100, 100, 10)}
    assert chosen(runs.tuned(problem)) == [0]
    assert runs.asked == [(0, 0)]


def test_what_was_measured_before_is_not_measured_again(runs: Runs) -> None:
    problem = problem_of((predicted(100, 100, 10), predicted(110, 110, 10)))
    runs.truth = {(0, 0): (120, 120, 12), (0, 1): (80, 80, 9)}
    first = runs.tuned(problem)
    again = runs.tuned(first.problem)
    assert len(runs.asked) == 2 and again.ran == () and again.problem == first.problem
    assert again.plan == first.plan


def test_what_is_smaller_than_predicted_makes_a_plan_possible(runs: Runs) -> None:
    """No upper quantile fits, and the second smallest by prediction is what does in truth."""
    problem = problem_of((predicted(1, 1, 10), predicted(1, 1, 12), predicted(1, 1, 60)))
    runs.truth = {(0, 0): (1, 1, 15), (0, 1): (2, 2, 9)}
    tuned = runs.tuned(problem, budget_bytes=10)
    assert chosen(tuned) == [1] and [r.objective is None for r in tuned.rounds] == [True, True, False]
    # Where not even the lower quantiles fit, nothing has to run.
    runs.asked.clear()
    assert runs.tuned(problem, budget_bytes=4).plan.status == "infeasible"
    assert runs.asked == []


def test_shards_that_may_gain_most_come_first(runs: Runs) -> None:
    """In the time of their run: 10 ns of 100 are more than 20 ns of 1000."""
    problem = problem_of((predicted(1000, 1000, 10, 1.02),) * 2, (predicted(100, 100, 10, 1.1),) * 2)
    runs.truth = {(s, c): (1000.0 - 900 * s, 1000.0 - 900 * s, 10) for s, c in product(range(2), range(2))}
    runs.tuned(problem)
    assert runs.asked[:4] == [(0, 0), (1, 0), (1, 1), (0, 1)]


def test_what_is_close_runs_a_second_time_and_the_least_times_count(runs: Runs) -> None:
    problem = problem_of((predicted(100, 100, 10), predicted(110, 110, 10), predicted(120, 120, 10)))
    runs.truth = {(0, 0): (100, 100, 10), (0, 1): (105, 105, 9), (0, 2): (150, 150, 9)}
    runs.second = {(0, 0): (130, 130, 12), (0, 1): (95, 95, 9)}
    tuned = runs.tuned(problem)
    assert chosen(tuned) == [1]
    assert sorted(runs.asked) == [(0, 0), (0, 0), (0, 1), (0, 1), (0, 2)]
    first, second = tuned.problem.shards[0].costs[:2]
    assert first is not None and (first.read_ns, first.peak_bytes) == (Figure(100.0), Figure(12.0))
    assert second is not None and second.read_ns == Figure(95.0)


def test_predictions_for_another_machine_do_not_mislead(runs: Runs) -> None:
    """All is ten times as fast here: what did not run is no slower for that."""
    problem = problem_of((predicted(1000, 1000, 10, 1.2), predicted(1010, 1010, 10, 1.2)))
    runs.truth = {(0, 0): (100, 100, 10), (0, 1): (90, 90, 10)}
    assert chosen(runs.tuned(problem)) == [1]


class Clock:
    """Shows what time it is when told: every run takes so long."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(MODULE.time, "monotonic", lambda: self.now)

    def takes(self, seconds: float) -> Callable[[object], None]:
        def run(_: object) -> None:
            self.now += seconds

        return run


def test_it_ends_when_the_time_is_up(monkeypatch: pytest.MonkeyPatch, runs: Runs) -> None:
    problem = problem_of(*[tuple(predicted(100, 100, 10) for _ in range(4))] * 3)
    runs.truth = dict.fromkeys(product(range(3), range(4)), (100.0, 100.0, 10))
    clock = Clock(monkeypatch)
    tuned = runs.tuned(problem, seconds=10.0, on_run=clock.takes(2.0))
    # Three that were chosen, two more within 90 % of the time; then what was chosen stays.
    assert (tuned.stopped_by, len(tuned.ran)) == ("time", 5)
    assert all(tuned.problem.shards[s].costs[c].measured for s, c in enumerate(chosen(tuned)))  # type: ignore[union-attr]


def test_a_run_that_would_take_too_long_is_left_out(runs: Runs) -> None:
    slow = replace(predicted(100, 100, 10), rebuild_us=60e6)
    problem = problem_of((slow, predicted(130, 130, 10)))
    runs.truth = {(0, 1): (110, 110, 10)}
    tuned = runs.tuned(problem, seconds=10.0)
    assert runs.asked == [(0, 1)] and tuned.stopped_by == "time"


def test_it_can_be_cancelled_between_runs(runs: Runs) -> None:
    problem = problem_of(*[tuple(predicted(100, 100, 10) for _ in range(4))] * 2)
    runs.truth = dict.fromkeys(product(range(2), range(4)), (100.0, 100.0, 10))
    tuned = runs.tuned(problem, cancelled=lambda: len(runs.asked) == 3)
    assert (tuned.stopped_by, len(runs.asked)) == ("cancel", 3)
    assert tuned.plan.problem_sha256 == tuned.problem.sha256 and sum(measured_costs(tuned.problem)) == 3


def measured_costs(problem: IndexProblem) -> list[bool]:
    return [cost is not None and cost.measured for shard in problem.shards for cost in shard.costs]


def test_pauses_that_are_longer_than_predicted_may_leave_nothing(runs: Runs) -> None:
    """Every run here has a pause of 1 us."""
    short = replace(predicted(100, 100, 10), pause_us=Figure(0.1))
    runs.truth = {(0, 0): (100, 100, 10), (0, 1): (100, 100, 10)}
    one = problem_of((short, replace(short, pause_us=Figure(0.2))), longest_pause_us=0.5)
    with pytest.raises(InputError, match="can be served by no candidate"):
        runs.tuned(one)
    assert chosen(runs.tuned(replace(one, longest_pause_us=1.5))) == [0]


def test_so_many_operations_run(runs: Runs) -> None:
    problem = problem_of((predicted(100, 100, 10),))
    runs.truth = {(0, 0): (100, 100, 10)}
    runs.tuned(problem, most_operations=7)
    runs.tuned(problem)
    assert runs.parts == [7, None]


@pytest.mark.parametrize(
    ("traces", "more", "text"),
    [
        ([trace_of(10, 30, 10)], {}, "traces: are not as many as shards"),
        ([trace_of(10, 30, 10), trace_of(12, 30, 10)], {}, r"traces\[1\]: are not as many keys as s1 has, 11"),
        (
            [trace_of(10, 30, 0), trace_of(11, 30, 1)],
            {},
            r"traces\[1\]: are in the trace, and s1 has none \(found '1 wr",
        ),
        ([trace_of(10, 30, 10), trace_of(11, 30, 0)], {"seconds": 0.0}, "seconds: "),
        ([trace_of(10, 30, 10), trace_of(11, 30, 0)], {"most_operations": 0}, "most_operations: "),
    ],
)
def test_what_does_not_go_together_is_refused(
    runs: Runs, traces: list[Trace], more: dict[str, float], text: str
) -> None:
    costs = (predicted(1, 1, 1),)
    problem = problem_of(costs, costs)
    second = replace(problem.shards[1], operations=Operations(lookups=30.0))
    problem = replace(problem, shards=(problem.shards[0], second))
    with pytest.raises(InputError, match=text):
        tune(problem, traces, lambda now: by_brute_force(now, PLENTY), **more)  # type: ignore[arg-type]
    assert runs.asked == []


def test_on_an_index() -> None:
    """Nothing stands in for the runs here; which is the quickest is not for a test to say."""
    problem = problem_of(tuple(predicted(100, 100, 2000, np.inf) for _ in range(4)))
    tuned = tune(problem, traces_of(problem), lambda now: by_brute_force(now, PLENTY))
    assert all(measured_costs(tuned.problem)) and tuned.stopped_by == "stable"
    quickest = min(range(4), key=lambda c: figures(tuned.problem, 0, c)[0])  # type: ignore[index]
    assert chosen(tuned) == [quickest]
