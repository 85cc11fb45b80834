"""Drift of the work on shards: the distance of two mixes, and the problem of shards under other work."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.models.index.configuration import FragmentedLog, GappedArray, HashTable
from loadmaster.models.index.drift import added, drift, with_work
from loadmaster.models.index.features import features
from loadmaster.models.index.generators import Mix, make_trace
from loadmaster.models.index.predictor import predict, shipped
from loadmaster.models.index.presets import problem_of
from loadmaster.models.index.problem import Figure, Operations
from tests.models.index.index_instances import cost, random_problem

WORK = st.builds(Operations, *[st.integers(0, 1000).map(float)] * 4)
PAIRS = st.integers(1, 4).flatmap(
    lambda n: st.tuples(st.lists(WORK, min_size=n, max_size=n), st.lists(WORK, min_size=n, max_size=n))
)


def test_the_amount_of_work_is_no_drift() -> None:
    planned = [Operations(lookups=90, inserts=10), Operations(lookups=100)]
    assert drift(planned, [Operations(lookups=9000, inserts=1000), Operations(lookups=10_000)]) == pytest.approx(0)


def test_drift_is_the_share_that_would_have_to_move() -> None:
    # 100 operations, of which 30 lookups have become inserts and 20 went to the other shard.
    planned = [Operations(lookups=80), Operations(lookups=20)]
    seen = [Operations(lookups=30, inserts=30), Operations(lookups=40)]
    assert drift(planned, seen) == pytest.approx(0.5)


def test_other_work_altogether_is_a_drift_of_one() -> None:
    assert drift([Operations(lookups=7)], [Operations(inserts=3)]) == 1.0


def test_no_work_is_no_drift() -> None:
    assert drift([Operations(lookups=7)], [Operations()]) == 0.0


@given(PAIRS)
def test_drift_is_a_distance_between_nothing_and_all(works: tuple[list[Operations], list[Operations]]) -> None:
    a, b = works
    assert 0 <= drift(a, b) <= 1 + 1e-12
    assert drift(a, b) == drift(b, a)
    assert drift(a, a) == 0


@given(PAIRS)
def test_what_is_added_can_be_taken_away(works: tuple[list[Operations], list[Operations]]) -> None:
    a, b = works
    assert added(added(a, b), b, -1) == a


def test_a_problem_without_features_keeps_its_times_and_grows_its_bytes() -> None:
    problem = random_problem(3, shards=1)
    problem = replace(problem, shards=(replace(problem.shards[0], keys=100, operations=Operations(lookups=5)),))
    seen = [Operations(lookups=10, inserts=100)]
    shard = with_work(problem, seen, [200], [0]).shards[0]
    assert (shard.keys, shard.operations, shard.current) == (200, seen[0], 0)
    for old, new in zip(problem.shards[0].costs, shard.costs, strict=True):
        if old is None:
            assert new is None
            continue
        assert new is not None
        assert (new.read_ns, new.write_ns) == (old.read_ns, old.write_ns)
        assert new.peak_bytes.expected == pytest.approx(3 * old.peak_bytes.expected)
        assert new.rebuild_us == pytest.approx(2 * old.rebuild_us)


def test_a_measurement_corrects_what_is_predicted_for_other_work() -> None:
    candidates = (GappedArray(), FragmentedLog(), HashTable())
    seen = features(make_trace("uniform", 1000, 2000, Mix(inserts=0.1)))
    problem = problem_of("one", [("a", seen)], candidates=candidates)
    predicted = problem.shards[0].costs[1]
    assert predicted is not None
    measured = replace(predicted, read_ns=Figure(1.5 * predicted.read_ns.expected), measured=True)
    shard = replace(problem.shards[0], costs=(problem.shards[0].costs[0], measured, None))
    problem = replace(problem, shards=(shard,))

    work = Operations(lookups=500, inserts=5000)
    made = with_work(problem, [work], [4000], [1]).shards[0]
    expected = predict(replace(seen, keys=4000, lookups=500.0, inserts=5000.0), candidates[1], shipped())
    assert made.costs[1] is not None
    assert made.costs[1].read_ns.expected == pytest.approx(1.5 * expected.read_ns.expected)
    assert made.costs[1].write_ns == expected.write_ns
    assert made.costs[2] is None


def test_writes_that_were_never_measured_are_predicted() -> None:
    seen = features(make_trace("uniform", 1000, 2000, Mix(inserts=0)))
    problem = problem_of("one", [("a", seen)], candidates=(GappedArray(),))
    shard = replace(problem.shards[0], costs=(cost(100.0, None, 20_000),))
    made = with_work(replace(problem, shards=(shard,)), [Operations(inserts=100)], [1000], [0]).shards[0]
    assert made.costs[0] is not None
    assert made.costs[0].write_ns is not None
