"""What index plans prove, against all choices that the checker accepts: optima, bounds and verdicts, to the byte."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator

import pytest

from loadmaster.models.index.checker import check, check_plan
from loadmaster.models.index.plan import Choice, IndexPlan
from loadmaster.models.index.problem import Cost, Figure, Host, IndexProblem, Operations, Shard
from loadmaster.planner.index.driver import plan_index
from loadmaster.planner.options import PlanOptions
from tests.models.index.index_instances import CANDIDATES, by_hand, cost

MOST_WAYS = 500


def random_problem(seed: int) -> IndexProblem:
    """Up to four shards: bytes from none to GiB, times from nothing to seconds, hosts of nothing and of too little."""
    rng = random.Random(seed)
    count, candidates = rng.randint(1, 4), rng.randint(1, 4)
    size: Callable[[], float] = rng.choice(
        [
            lambda: float(rng.randint(0, 6)),
            lambda: float(rng.randint(1, 1 << 34)),
            lambda: float(rng.choice([1 << 30, (1 << 30) + 1, 1, 0])),
        ]
    )
    took_ns: Callable[[], float] = rng.choice([lambda: float(rng.randint(0, 5)), lambda: 10 ** rng.uniform(-2, 6)])
    operations: Callable[[], float] = rng.choice([lambda: float(rng.randint(0, 3)), lambda: 10 ** rng.uniform(0, 9)])
    hosts = tuple(
        Host(f"h{n}", rng.randint(1, 3), rng.choice([None, None, 0, int(size()), int(3 * size())]))
        for n in range(rng.randint(1, 2))
    )

    def shard(s: int) -> Shard:
        costs: list[Cost | None] = [cost(took_ns(), took_ns(), size(), rebuild_us=took_ns()) for _ in range(candidates)]
        host = rng.randrange(len(hosts))
        return Shard(
            f"s{s}",
            keys=10,
            operations=Operations(lookups=operations(), inserts=rng.choice([0.0, operations()])),
            costs=tuple(None if n and rng.random() < 0.1 else one for n, one in enumerate(costs)),
            current=rng.choice([None, 0]),
            host=host,
            thread=rng.choice([None, None, rng.randrange(hosts[host].threads)]),
        )

    shards = tuple(shard(s) for s in range(count))
    return IndexProblem(f"small-{seed}", CANDIDATES[:candidates], shards, hosts, rng.choice(["sum", "longest-thread"]))


def all_choices(problem: IndexProblem) -> Iterator[tuple[Choice, ...]]:
    """Every candidate of every shard on every thread."""
    of_shards = []
    for s, shard in enumerate(problem.shards):
        threads: list[int | None] = [shard.thread]
        if shard.thread is None and problem.objective == "longest-thread":
            threads = [*range(problem.hosts[shard.host].threads)]
        found = [(c, by_hand(problem, s, c)) for c in range(len(problem.candidates))]
        of_shards.append([Choice(c, *figures, thread) for c, figures in found if figures for thread in threads])
    return itertools.product(*of_shards)


def planned(problem: IndexProblem, budget_bytes: int) -> IndexPlan:
    return plan_index(problem, PlanOptions(budget_bytes=budget_bytes, gap=0.0, time_limit_s=60))


def assert_proofs_hold(seed: int, *, everywhere: bool) -> bool:
    """At peaks of plans, at the least of all plans, one byte below each; and where it says that a plan works.

    Returns:
        whether the problem is small enough.
    """
    problem = random_problem(seed)
    ways = [*itertools.islice(all_choices(problem), MOST_WAYS)]
    if len(ways) == MOST_WAYS:
        return False
    verdicts = [check(problem, choices, 1 << 60) for choices in ways]
    tried = [(v.peak_bytes, v.objective) for v in verdicts if v.ok]
    peaks = sorted({peak for peak, _ in tried}) or [1 << 40]
    budgets = [peaks[0], peaks[0] - 1, peaks[len(peaks) // 2], peaks[len(peaks) // 2] - 1]
    for budget_bytes in {max(b, 0) for b in (budgets if everywhere else [budgets[seed % 4]])}:
        best_us = min((took for peak, took in tried if peak <= budget_bytes), default=None)
        plan = planned(problem, budget_bytes)
        if best_us is None:
            assert plan.status == "infeasible" and plan.infeasibility is not None
            assert plan.infeasibility.budget_helps == bool(tried)
            if tried:
                assert plan.infeasibility.minimum_budget_bytes == peaks[0]
            continue
        assert plan.objective is not None and plan.bound is not None
        verdict = check_plan(problem, plan)
        assert verdict.ok and verdict.peak_bytes <= budget_bytes
        assert plan.bound <= best_us * (1 + 1e-9)
        assert plan.objective >= best_us * (1 - 1e-9)
        if plan.status == "optimal":
            assert plan.objective <= best_us * (1 + 1e-9)
    return True


@pytest.mark.parametrize("seed", range(20))
def test_what_is_proved_is_true(seed: int) -> None:
    assert_proofs_hold(seed, everywhere=True)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(6))
def test_what_is_proved_is_true_of_many(part: int) -> None:
    seeds = range(100 + 100 * part, 200 + 100 * part)
    assert sum(assert_proofs_hold(seed, everywhere=False) for seed in seeds) >= 84


def of_hosts(*hosts: Host) -> IndexProblem:
    """A shard of ten bytes on each."""
    shards = tuple(
        Shard(f"s{n}", keys=10, operations=Operations(lookups=1.0), costs=(Cost(Figure(5.0), Figure(10.0)),), host=n)
        for n in range(len(hosts))
    )
    return IndexProblem("hosts", CANDIDATES[:1], shards, hosts)


def test_a_host_of_no_bytes_is_one_of_no_bytes() -> None:
    plan = planned(of_hosts(Host("free"), Host("none", memory_bytes=0)), 5)
    assert plan.status == "infeasible" and plan.infeasibility is not None
    # More budget is of no use to it.
    assert (plan.infeasibility.where, plan.infeasibility.budget_helps) == ("none", False)
    assert plan.infeasibility.short_bytes == 10


def test_a_host_of_no_bytes_serves_what_takes_none() -> None:
    problem = of_hosts(Host("none", memory_bytes=0))
    (shard,) = problem.shards
    costs = (Cost(Figure(5.0), Figure(0.0)), Cost(Figure(1.0), Figure(1.0)))
    both = IndexProblem(
        "none", CANDIDATES[:2], (Shard("s", 10, shard.operations, costs),), (Host("none", memory_bytes=0),)
    )
    plan = planned(both, 1 << 30)
    assert plan.status == "optimal" and plan.choices[0].candidate == 0
