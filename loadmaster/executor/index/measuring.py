"""Runs a trace on an index: what its operations take, by kind, and the most bytes that it came to.

Operations go in batches of up to 1000 neighbouring ones, through the public calls of ``Index``. Within a batch their
order is not kept: inserts come first, then lookups, scans and erases, so that what a batch asks for is there. Times are
processor seconds of these calls alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from loadmaster.errors import InputError
from loadmaster.executor.index.core_protocol import GREATEST_KEY
from loadmaster.executor.index.index import Index
from loadmaster.models.index.configuration import Configuration, HashTable
from loadmaster.models.index.problem import Cost, Figure
from loadmaster.models.index.trace import ERASE, INSERT, LOOKUP, SCAN, Keys, Trace

# Neighbouring operations that go together.
BATCH_OPERATIONS = 1000
# Pairs that a scan reads from its key on.
SCAN_KEYS = 100
# By how much a hash table grows where it is full.
TABLE_GROWTH = 1.5
_TIMES = ("build_ns", "read_ns", "write_ns", "scan_ns", "pause_us")
_ORDER = (INSERT, LOOKUP, SCAN, ERASE)


@dataclass(frozen=True)
class Measured:
    """Times and memory of a configuration on a trace, or on its first operations (unless ``whole``).

    Attributes:
        keys, operations: those loaded, and those that ran.
        build_ns: of one key, from sorted arrays; None where none are loaded.
        read_ns, write_ns, scan_ns: of one lookup, one insert or erase, one scan of up to 100 pairs; None: none ran.
        peak_bytes: the most that the index took after loading or after a batch. If only the first operations ran, those
            by the most keys that were there, times the most keys that the whole trace comes to; a hash table grows by
            steps, as many as that may need.
        pause_us: of the longest change of structure, by the clock on the wall; None where nothing was written.
    """

    keys: int
    operations: int
    whole: bool
    build_ns: float | None
    read_ns: float | None
    write_ns: float | None
    scan_ns: float | None
    peak_bytes: int
    pause_us: float | None


def measure(
    trace: Trace, configuration: Configuration, *, most_operations: int | None = None, repeats: int = 1
) -> Measured:
    """Load an index with the trace's keys and run its operations, the first ``most_operations`` of them; None: all.

    Of ``repeats``, each with a new index, the least of each time is kept: what other programs add is never below
    nothing. InputError: the configuration cannot serve the trace, or a number is too small. MemoryError: not enough.
    """
    _expect_serves(trace, configuration)
    for name, value, least in (("most_operations", most_operations, 0), ("repeats", repeats, 1)):
        if value is not None and value < least:
            raise InputError(name, value, f"is less than {least}", f"Give {least} or more.")
    total = len(trace.operations)
    count = total if most_operations is None else min(most_operations, total)
    keys = np.sort(trace.keys)
    runs = [_run(keys, trace.operations[:count], trace.operation_keys[:count], configuration) for _ in range(repeats)]
    whole_bytes = _of_the_whole(runs[0], trace, configuration) if count < total else runs[0].peak_bytes
    return quickest([_measured(run, len(keys), count, whole_bytes, whole=count == total) for run in runs])


def quickest(measured: Sequence[Measured]) -> Measured:
    """Merge runs of one configuration on one trace: the least of each time."""

    def of(name: str) -> float | None:
        times = [getattr(one, name) for one in measured]
        return None if times[0] is None else float(min(times))

    times: dict[str, Any] = {name: of(name) for name in _TIMES}
    return replace(measured[0], **times)


def _measured(run: _Run, keys: int, operations: int, peak_bytes: int, *, whole: bool) -> Measured:
    def each(spent_ns: int, count: int) -> float | None:
        return spent_ns / count if count else None

    return Measured(
        keys=keys,
        operations=operations,
        whole=whole,
        build_ns=each(run.build_ns, keys),
        read_ns=each(run.spent_ns[LOOKUP], run.ran[LOOKUP]),
        write_ns=each(run.spent_ns[INSERT] + run.spent_ns[ERASE], run.writes),
        scan_ns=each(run.spent_ns[SCAN], run.ran[SCAN]),
        peak_bytes=peak_bytes,
        pause_us=run.pause_us if run.writes else None,
    )


def cost_of(measured: Measured, predicted: Cost) -> Cost:
    """The cost by what was measured. What did not run stays as predicted. So does the pause where only a part of the
    trace ran, unless a longer one was measured: the longest may come later."""
    pause = predicted.pause_us
    if measured.pause_us is not None and (measured.whole or pause is None or measured.pause_us > pause.most):
        pause = Figure(measured.pause_us)
    return Cost(
        read_ns=predicted.read_ns if measured.read_ns is None else Figure(measured.read_ns),
        peak_bytes=Figure(float(measured.peak_bytes)),
        write_ns=predicted.write_ns if measured.write_ns is None else Figure(measured.write_ns),
        rebuild_us=predicted.rebuild_us if measured.build_ns is None else measured.build_ns * measured.keys / 1e3,
        pause_us=pause,
        scan_ns=predicted.scan_ns if measured.scan_ns is None else Figure(measured.scan_ns),
        measured=True,
    )


@dataclass
class _Run:
    build_ns: int
    spent_ns: list[int]
    ran: list[int]
    peak_bytes: int
    peak_keys: int
    pause_us: float = 0.0

    @property
    def writes(self) -> int:
        return self.ran[INSERT] + self.ran[ERASE]

    def take(self, index: Index) -> None:
        facts = index.facts()
        self.peak_bytes = max(self.peak_bytes, facts.size_bytes)
        self.peak_keys = max(self.peak_keys, facts.keys)
        self.pause_us = facts.longest_change_us


def _run(keys: Keys, operations: np.ndarray, operation_keys: Keys, configuration: Configuration) -> _Run:
    start = time.process_time_ns()
    index = Index(keys, keys, configuration, presorted=True)
    run = _Run(time.process_time_ns() - start, [0] * 4, [0] * 4, 0, 0)
    run.take(index)
    calls = _calls(index)
    for begin in range(0, len(operations), BATCH_OPERATIONS):
        codes = operations[begin : begin + BATCH_OPERATIONS]
        asked = operation_keys[begin : begin + BATCH_OPERATIONS]
        for code in _ORDER:
            part = asked[codes == code]
            if len(part):
                start = time.process_time_ns()
                calls[code](part)
                run.spent_ns[code] += time.process_time_ns() - start
                run.ran[code] += len(part)
        run.take(index)
    return run


def _calls(index: Index) -> dict[int, Callable[[Keys], object]]:
    def scan(keys: Keys) -> None:
        for key in keys.tolist():
            index.range(key, GREATEST_KEY, SCAN_KEYS)

    return {LOOKUP: index.lookup, INSERT: lambda keys: index.upsert(keys, keys), ERASE: index.delete, SCAN: scan}


def _expect_serves(trace: Trace, configuration: Configuration) -> None:
    remedy = "Measure another structure, or another trace."
    if not configuration.writable and bool(np.isin(trace.operations, (INSERT, ERASE)).any()):
        raise InputError("configuration", configuration.structure, "cannot be written, and the trace writes", remedy)
    if not configuration.ordered and bool((trace.operations == SCAN).any()):
        raise InputError("configuration", configuration.structure, "has no order, and the trace scans", remedy)


def _of_the_whole(run: _Run, trace: Trace, configuration: Configuration) -> int:
    ratio = max(1.0, most_keys(trace) / max(1, run.peak_keys))
    if isinstance(configuration, HashTable):
        ratio = TABLE_GROWTH ** math.ceil(math.log(ratio, TABLE_GROWTH))
    return math.ceil(run.peak_bytes * ratio)


def most_keys(trace: Trace) -> int:
    """The most keys that are there at once while a trace runs."""
    writes = np.isin(trace.operations, (INSERT, ERASE))
    there, keys = trace.operations[writes] == INSERT, trace.operation_keys[writes]
    order = np.argsort(keys, kind="stable")
    # Whether the key of a write was there before: by the write of the same key before, or as it was loaded.
    before = np.isin(keys, trace.keys)
    again = order[1:][keys[order[1:]] == keys[order[:-1]]]
    before[again] = there[order[:-1][keys[order[1:]] == keys[order[:-1]]]]
    change = there.astype(np.int64) - before
    return len(trace.keys) + max(0, int(np.cumsum(change).max(initial=0)))
