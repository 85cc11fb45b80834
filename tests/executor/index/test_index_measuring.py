"""Running a trace on an index: how much ran, how large it became, and what is left out where nothing ran."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from loadmaster.errors import InputError
from loadmaster.executor.index import Configuration, FragmentedLog, GappedArray, HashTable, Index, SortedArray
from loadmaster.executor.index.measuring import Measured, cost_of, measure, most_keys
from loadmaster.models.index.generators import Mix, make_trace
from loadmaster.models.index.problem import Cost, Figure
from loadmaster.models.index.trace import ERASE, INSERT, LOOKUP, SCAN, Trace

ALL: tuple[Configuration, ...] = (GappedArray(), FragmentedLog(32, 64, 8), SortedArray(), HashTable())
PREDICTED = Cost(Figure(1.0, 0.5, 2.0), Figure(1e6), Figure(3.0), 9.0, Figure(40.0, 20.0, 80.0), Figure(5.0))


def trace_of(keys: list[int], operations: list[tuple[int, int]]) -> Trace:
    codes, asked = zip(*operations, strict=True) if operations else ((), ())
    return Trace(np.array(keys, np.uint64), np.array(codes, np.uint8), np.array(asked, np.uint64))


def most_by_a_dict(trace: Trace) -> int:
    there = dict.fromkeys(trace.keys.tolist())
    most = len(there)
    for code, key in zip(trace.operations.tolist(), trace.operation_keys.tolist(), strict=True):
        if code == INSERT:
            there[key] = None
        elif code == ERASE:
            there.pop(key, None)
        most = max(most, len(there))
    return most


@pytest.mark.parametrize("configuration", ALL, ids=str)
def test_what_a_trace_has_none_of_has_no_time(configuration: Configuration) -> None:
    reads = make_trace("uniform", 3000, 2500, Mix(inserts=0.0))
    measured = measure(reads, configuration)
    assert (measured.keys, measured.operations, measured.whole) == (3000, 2500, True)
    assert measured.read_ns is not None and measured.read_ns > 0
    assert measured.build_ns is not None and measured.build_ns > 0
    assert measured.write_ns is None and measured.scan_ns is None and measured.pause_us is None
    assert measured.peak_bytes == Index(reads.keys, reads.keys, configuration).size_bytes >= 16 * 3000


def test_every_kind_of_operation_is_timed() -> None:
    mixed = make_trace("lognormal", 2000, 3000, Mix(inserts=0.3, erases=0.1, scans=0.1))
    measured = measure(mixed, FragmentedLog(32, 64, 8), repeats=2)
    for ns in (measured.read_ns, measured.write_ns, measured.scan_ns):
        assert ns is not None and ns > 0
    assert measured.pause_us is not None
    assert measured.peak_bytes >= 16 * (2000 + 900 - 300)


def test_operations_reach_the_index_in_their_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counters of the index, and its keys, beside what a dictionary says."""
    made: list[Index] = []
    start = Index.__init__

    def kept(self: Index, *arguments: object, **named: object) -> None:
        start(self, *arguments, **named)  # type: ignore[arg-type]
        made.append(self)

    monkeypatch.setattr(Index, "__init__", kept)
    mixed = make_trace("clustered", 1500, 4000, Mix(inserts=0.3, erases=0.1, scans=0.05))
    measure(mixed, GappedArray(), most_operations=3300)
    facts = made[0].facts()
    codes, asked = mixed.operations[:3300], mixed.operation_keys[:3300]
    assert facts.lookups == (codes == LOOKUP).sum()
    assert facts.inserts == (codes == INSERT).sum()
    assert facts.deletes == (codes == ERASE).sum()
    assert facts.ranges >= (codes == SCAN).sum()
    expected = set(mixed.keys.tolist()) | set(asked[codes == INSERT].tolist())
    expected -= set(asked[codes == ERASE].tolist())
    assert set(made[0]) == expected


def test_the_most_keys_are_those_of_a_dictionary() -> None:
    random = np.random.default_rng(4)
    for _ in range(50):
        keys = random.choice(12, random.integers(0, 9), replace=False)
        operations = [
            (int(c), int(k)) for c, k in zip(random.integers(0, 4, 40), random.integers(0, 12, 40), strict=True)
        ]
        trace = trace_of(keys.tolist(), operations)
        assert most_keys(trace) == most_by_a_dict(trace)
    assert most_keys(trace_of([5], [])) == 1


@pytest.mark.parametrize("configuration", [GappedArray(), FragmentedLog(64, 256, 16), HashTable()], ids=str)
def test_bytes_of_a_part_are_those_of_the_whole(configuration: Configuration) -> None:
    growing = make_trace("uniform", 20_000, 40_000, Mix(inserts=1.0))
    whole = measure(growing, configuration).peak_bytes
    part = measure(growing, configuration, most_operations=10_000)
    assert not part.whole and part.operations == 10_000
    assert 0.7 * whole < part.peak_bytes < 2.1 * whole
    if isinstance(configuration, HashTable):
        assert part.peak_bytes > 0.9 * whole  # but for what the memory pool rounds up


def test_an_empty_trace() -> None:
    measured = measure(trace_of([], []), GappedArray())
    assert measured.build_ns is None and measured.read_ns is None and measured.peak_bytes > 0
    grown = measure(trace_of([], [(INSERT, 7), (LOOKUP, 7)]), HashTable())
    assert grown.write_ns is not None and grown.read_ns is not None


def test_a_cost_keeps_predictions_of_what_did_not_run() -> None:
    nothing = Measured(10, 0, False, None, None, None, None, 500, None)
    assert cost_of(nothing, PREDICTED) == replace(PREDICTED, peak_bytes=Figure(500.0), measured=True)
    every = Measured(10, 100, True, 50.0, 60.0, 70.0, 80.0, 500, 2.0)
    assert cost_of(every, PREDICTED) == Cost(
        Figure(60.0), Figure(500.0), Figure(70.0), 0.5, Figure(2.0), Figure(80.0), measured=True
    )


def test_the_pause_of_a_part_is_no_promise() -> None:
    part = Measured(10, 50, False, 50.0, 60.0, 70.0, 80.0, 500, 2.0)
    assert cost_of(part, PREDICTED).pause_us == PREDICTED.pause_us
    assert cost_of(replace(part, pause_us=90.0), PREDICTED).pause_us == Figure(90.0)


def test_refusals() -> None:
    writing = make_trace("uniform", 100, 50, Mix(inserts=0.5))
    with pytest.raises(InputError, match=r"^configuration: cannot be written"):
        measure(writing, SortedArray())
    with pytest.raises(InputError, match=r"^configuration: has no order"):
        measure(make_trace("uniform", 100, 50, Mix(inserts=0.0, scans=0.5)), HashTable())
    with pytest.raises(InputError, match=r"^most_operations"):
        measure(writing, HashTable(), most_operations=-1)
    with pytest.raises(InputError, match=r"^repeats"):
        measure(writing, HashTable(), repeats=0)
