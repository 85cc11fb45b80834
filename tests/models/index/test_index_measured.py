"""Measurements in place of predictions: what may still be quicker, what stays beside them, what others learn."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from loadmaster.errors import InputError
from loadmaster.models.index.configuration import Configuration, FragmentedLog, GappedArray, SortedArray
from loadmaster.models.index.documents import read_problem, write_problem
from loadmaster.models.index.measured import corrected, may_gain_us, near_ties, with_measured
from loadmaster.models.index.problem import Cost, Figure, IndexProblem, Operations, Predicted, Shard
from tests.models.index.index_instances import cost

CANDIDATES: tuple[Configuration, ...] = (GappedArray(), GappedArray(2.0), FragmentedLog(), FragmentedLog(32, 64, 8))


def many(shards: int, *figures: float) -> IndexProblem:
    """Shards with the same predictions, of so many nanoseconds for a read, twice that for a write."""
    costs = tuple(Cost(Figure(ns, ns / 2, 2 * ns), Figure(10.0), Figure(2 * ns, ns, 4 * ns)) for ns in figures)
    done = Operations(lookups=10.0, inserts=1.0)
    return IndexProblem("many", CANDIDATES[: len(costs)], tuple(Shard(f"s{s}", 1, done, costs) for s in range(shards)))


def read_ns(problem: IndexProblem, s: int, c: int) -> float:
    of = problem.shards[s].costs[c]
    assert of is not None
    return of.read_ns.expected


def test_near_ties_are_what_may_be_quicker() -> None:
    def predicted(expected: float, spread: float) -> Cost:
        return Cost(Figure(expected, expected / spread, expected * spread), Figure(10.0))

    costs = (predicted(100.0, 1.2), predicted(130.0, 1.2), predicted(150.0, 1.1), cost(90.0, None, 10))
    candidates = (GappedArray(), GappedArray(2.0), GappedArray(3.0), SortedArray())
    of = IndexProblem("ties", candidates, (Shard("s", 1, Operations(lookups=1.0), costs),))
    assert near_ties(of, 0, 0) == [0, 1]
    measured = with_measured(of, {(0, 0): cost(140.0, None, 10)})
    assert near_ties(measured, 0, 0) == [1, 2]
    was = Predicted(Figure(100.0, 83.33, 120.0), Figure(10.0))
    assert measured.shards[0].costs[0] == replace(cost(140.0, None, 10), measured=True, predicted=was)
    assert measured.sha256 != of.sha256


def test_a_rebuild_counts_against_a_gain() -> None:
    costs = (cost(100.0, None, 10, rebuild_us=7.0), cost(50.0, None, 10, rebuild_us=7.0))
    shard = Shard("s", 1, Operations(lookups=100.0), costs)
    assert may_gain_us(shard, 0, 1) == pytest.approx(5.0)
    assert may_gain_us(replace(shard, current=0), 0, 1) == pytest.approx(-2.0)
    assert may_gain_us(replace(shard, current=1), 0, 1) == pytest.approx(12.0)


def test_measurements_are_rounded_and_the_first_prediction_stays_beside_them() -> None:
    of = many(1, 100.0, 100.0)
    once = with_measured(of, {(0, 0): replace(cost(123.456789, 0.0123456, 12345678), rebuild_us=98765.4)})
    found = once.shards[0].costs[0]
    assert found is not None
    assert (found.read_ns, found.write_ns, found.rebuild_us) == (Figure(123.5), Figure(0.01235), 98770.0)
    assert found.peak_bytes == Figure(12345678)  # to the byte: budgets are held by it
    twice = with_measured(once, {(0, 0): cost(90.0, 10.0, 10)})
    again = twice.shards[0].costs[0]
    assert again is not None and again.predicted == found.predicted
    assert found.predicted == Predicted(Figure(100.0, 50.0, 200.0), Figure(10.0), Figure(200.0, 100.0, 400.0))
    assert read_problem(json.loads(json.dumps(write_problem(twice)))) == twice


def test_a_prediction_beside_a_prediction_is_refused() -> None:
    document = write_problem(with_measured(many(1, 100.0), {(0, 0): cost(90.0, 10.0, 10)}))
    document["shards"][0]["costs"][0]["measured"] = False
    with pytest.raises(InputError, match=r"costs\[0\].predicted: is of a cost that was not measured"):
        read_problem(document)
    document["shards"][0]["costs"][0] |= {"measured": True, "predicted": {"peak_bytes": {"expected": 1.0}}}
    document["shards"][0]["costs"][0]["predicted"]["read_ns"] = {"expected": 5.0, "upper": 4.0}
    with pytest.raises(InputError, match=r"costs\[0\].predicted.read_ns: are no quantiles"):
        read_problem(document)


def test_a_faster_machine_is_faster_for_all() -> None:
    of = corrected(many(2, 100.0, 200.0, 300.0, 400.0), {(0, 0): cost(50.0, 100.0, 10)})
    assert [read_ns(of, s, c) for s in range(2) for c in range(4)] == [50.0, 100.0, 150.0, 200.0] * 2
    other = of.shards[1].costs[3]
    assert other == Cost(Figure(200.0, 100.0, 400.0), Figure(10.0), Figure(400.0, 200.0, 800.0))


def test_reads_and_writes_are_corrected_each_by_its_own() -> None:
    of = corrected(many(1, 100.0, 200.0), {(0, 0): cost(50.0, 400.0, 10)})
    other = of.shards[0].costs[1]
    assert other is not None and other.write_ns is not None
    assert (other.read_ns.expected, other.write_ns.expected) == (100.0, 800.0)
    # What did not run was not measured, and says nothing of the machine.
    kept = replace(cost(50.0, None, 10), write_ns=Figure(200.0, 100.0, 400.0))
    other = corrected(many(1, 100.0, 200.0), {(0, 0): kept}).shards[0].costs[1]
    assert other is not None and other.write_ns == Figure(400.0, 200.0, 800.0)


def test_three_runs_tell_of_a_candidate_and_of_its_structure() -> None:
    """Candidate 0 takes half of what was predicted, 2 thrice as much, on every shard."""
    ran = {(s, 0): cost(50.0, 100.0, 10) for s in range(3)} | {(s, 2): cost(300.0, 600.0, 10) for s in range(3)}
    of = corrected(many(4, 100.0, 100.0, 100.0, 100.0), ran)
    assert [read_ns(of, 3, c) for c in range(4)] == pytest.approx([50.0, 50.0, 300.0, 300.0])
    assert [read_ns(of, 0, c) for c in (1, 3)] == pytest.approx([50.0, 300.0])


def test_a_shard_that_is_harder_is_harder_for_all_candidates() -> None:
    """Shard 2 takes twice as much, though what runs elsewhere came as predicted."""
    ran = {(s, 0): cost(100.0, 200.0, 10) for s in range(2)} | {(2, 0): cost(200.0, 400.0, 10)}
    of = corrected(many(3, 100.0, 100.0), ran)
    assert [read_ns(of, s, 1) for s in range(3)] == pytest.approx([100.0, 100.0, 200.0])
