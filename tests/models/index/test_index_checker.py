"""The checker of index plans, documents, near ties, and when a change pays."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from loadmaster.errors import InputError
from loadmaster.models.index.changes import changes
from loadmaster.models.index.checker import check
from loadmaster.models.index.configuration import FragmentedLog, GappedArray, HashTable, SortedArray
from loadmaster.models.index.documents import check_problem, read_plan, read_problem, write_plan, write_problem
from loadmaster.models.index.limits import least_bytes, spread, whole_bytes
from loadmaster.models.index.plan import Choice
from loadmaster.models.index.problem import Cost, Figure, Host, IndexProblem, Operations, Shard
from loadmaster.models.index.serving import refusal
from loadmaster.planner.index.driver import plan_index
from loadmaster.planner.options import PlanOptions
from tests.models.index.index_instances import cost, random_problem

GAPPED, LOG, SORTED, HASH = range(4)


def problem(**changed: object) -> IndexProblem:
    """Two shards on two threads of one host: one that is read in order, one that is written."""
    costs = (
        cost(100.0, 400.0, 1000, rebuild_us=50.0, pause_us=Figure(900.0)),
        cost(200.0, 150.0, 900, rebuild_us=20.0, pause_us=Figure(20.0, 10.0, 40.0)),
        cost(150.0, None, 500),
        cost(40.0, 200.0, 2000, pause_us=Figure(500.0)),
    )
    read = Shard("read", 100, Operations(lookups=1e6, scans=1e3), costs, current=LOG)
    written = Shard("written", 100, Operations(lookups=1e5, inserts=1e6, erases=1e5), costs)
    made = IndexProblem(
        "two", (GappedArray(), FragmentedLog(), SortedArray(), HashTable()), (read, written), (Host("host", 2),)
    )
    return replace(made, **changed)  # type: ignore[arg-type]


GOOD = (Choice(GAPPED, 100_150.0, 1000, 0), Choice(LOG, 185_000.0, 900, 1))


def test_what_a_plan_comes_to() -> None:
    found = check(problem(), GOOD, 1900)
    assert found.ok
    assert found.total_us == pytest.approx(285_150.0)
    assert found.longest_us == pytest.approx(185_000.0)
    assert (found.peak_bytes, found.peak_at, found.objective) == (1900, "host", found.total_us)
    assert check(problem(objective="longest-thread"), GOOD, 1900).objective == found.longest_us


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda c: c[:1], "1 choices are given for 2 shards"),
        (lambda c: (replace(c[0], candidate=9), c[1]), "no such one"),
        (lambda c: (Choice(HASH, 40_040.0, 2000, 0), c[1]), "keeps no order"),
        (lambda c: (c[0], Choice(SORTED, 15_000.0, 500, 1)), "takes no writes"),
        (lambda c: (replace(c[0], time_us=100_100.0), c[1]), "is said to take"),
        (lambda c: (c[0], replace(c[1], peak_bytes=899)), "is said to take"),
        (lambda c: (c[0], replace(c[1], thread=2)), "thread 2 of 2"),
        (lambda c: (c[0], replace(c[1], thread=None)), "is on no thread"),
    ],
)
def test_plans_that_do_not_hold(wrong: Callable[[tuple[Choice, ...]], tuple[Choice, ...]], said: str) -> None:
    found = check(problem(objective="longest-thread"), wrong(GOOD), 4000)
    assert not found.ok and said in found.violations[0]


def test_limits_that_are_broken() -> None:
    assert "1 B over its 1.85 KiB" in check(problem(), GOOD, 1899).violations[0]
    small = problem(hosts=(Host("host", 2, memory_bytes=1500),))
    assert "400 B over its 1.46 KiB" in check(small, GOOD, 4000).violations[0]
    given = problem(shards=(problem().shards[0], replace(problem().shards[1], thread=0)))
    assert "its thread is 0" in check(given, GOOD, 4000).violations[0]
    assert "may pause for 900 us" in check(problem(longest_pause_us=899.0), GOOD, 4000).violations[0]
    assert check(problem(longest_pause_us=900.0), GOOD, 4000).ok


def test_pauses_are_held_by_their_upper_quantile() -> None:
    of = problem(longest_pause_us=39.0)
    assert refusal(of, of.shards[1], LOG) == "may pause for 40 us"
    assert refusal(problem(longest_pause_us=40.0), of.shards[1], LOG) is None


def test_bytes_are_kept_for_the_upper_quantile_and_times_are_those_expected() -> None:
    predicted = Cost(Figure(100.0, 50.0, 300.0), Figure(10.5, 9.0, 12.2), Figure(100.0, 50.0, 300.0))
    of = problem(
        shards=(Shard("s", 1, Operations(lookups=10, inserts=10), (predicted, *problem().shards[0].costs[1:])),)
    )
    assert check(of, (Choice(GAPPED, 2.0, 13),), 13).ok


def test_a_change_pays_after_its_rebuild_is_saved() -> None:
    (made,) = changes(problem(), [GAPPED, LOG], 4000)
    assert (made.shard, made.current, made.to, made.made, made.rebuild_us) == (0, LOG, GAPPED, True, 50.0)
    # Each operation, lookup or scan, takes 100 ns less: 50 us are 500 of them.
    assert made.pays_after_operations == pytest.approx(500.0)
    (would,) = changes(problem(), [LOG, LOG], 4000)
    assert not would.made and would.to == GAPPED and would.pays_after_operations == pytest.approx(500.0)
    # Where the gapped array does not fit, the sorted one is the next best.
    (smaller,) = changes(problem(), [LOG, LOG], 1800)
    assert smaller.to == SORTED


def test_a_change_that_saves_memory_alone_never_pays() -> None:
    shard = replace(problem().shards[0], current=GAPPED)
    (made,) = changes(problem(shards=(shard, problem().shards[1])), [SORTED, LOG], 1400)
    assert made.made and made.pays_after_operations is None


def test_documents_come_back() -> None:
    for seed in range(3):
        of = random_problem(seed, objective="longest-thread")
        assert read_problem(json.loads(json.dumps(write_problem(of)))) == of
        for budget_bytes in (1, 1000):
            plan = plan_index(of, PlanOptions(budget_bytes=budget_bytes))
            assert read_plan(json.loads(json.dumps(write_plan(plan)))) == plan


def test_names_and_the_budget_are_no_part_of_a_problem() -> None:
    of = problem()
    assert replace(of, name="other", title="t", budget_bytes=5).sha256 == of.sha256
    assert replace(of, longest_pause_us=5.0).sha256 != of.sha256


def test_limits_reach_from_the_least_to_the_whole() -> None:
    assert (least_bytes(problem()), whole_bytes(problem())) == (1400, 1900)
    assert spread(problem(), 3) == [1400, 1650, 1900]


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"hosts": (Host("a"), Host("a"))}, "hosts[1].name"),
        ({"shards": (problem().shards[0], problem().shards[0])}, "shards[1].name"),
        ({"shards": (replace(problem().shards[0], host=1),)}, "shards[0].host"),
        ({"shards": (replace(problem().shards[0], thread=2),)}, "shards[0].thread"),
        ({"shards": (replace(problem().shards[0], current=4),)}, "shards[0].current"),
        ({"candidates": (GappedArray(),)}, "shards[0].costs"),
        ({"longest_pause_us": 1.0, "shards": (problem().shards[1],)}, "shards[0].costs"),
    ],
)
def test_problems_that_mean_nothing(changed: dict[str, object], field: str) -> None:
    with pytest.raises(InputError) as refused:
        check_problem(problem(**changed))
    assert refused.value.field == field


def test_quantiles_in_order() -> None:
    wrong = replace(problem().shards[0].costs[0], read_ns=Figure(5.0, 6.0, 7.0))  # type: ignore[type-var]
    shard = replace(problem().shards[0], costs=(wrong, *problem().shards[0].costs[1:]))
    with pytest.raises(InputError, match=r"^shards\[0\]\.costs\[0\]\.read_ns"):
        check_problem(problem(shards=(shard,)))
    document = write_problem(problem())
    document["shards"][0]["costs"][0]["latency"] = 1
    with pytest.raises(InputError, match=r"latency"):
        read_problem(document)
    document = write_problem(problem())
    document["candidates"][1]["fragment_keys"] = 1
    with pytest.raises(InputError, match=r"candidates\[1\]\.fragmented-log\.fragment_keys: input should be greater"):
        read_problem(document)
    document["candidates"][1] = {"structure": "tree"}
    with pytest.raises(InputError, match=r"candidates\[1\].*tree"):
        read_problem(document)
