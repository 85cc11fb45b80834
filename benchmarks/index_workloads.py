"""Planned indexes compared with the gapped array of ALEX, on whole workloads: 10 M keys, then 20 M operations.

    python -m benchmarks.index_workloads [--keys 10_000_000 --operations 20_000_000]

ALEX is not on PyPI. The peer is this package's gapped array: nodes, densities and cost model are those of [ALEX20],
its expected share of inserts is that of the workload, and pages, pool, batches and calls are the same for all. Keys are
drawn from distributions from easy to hard; ``text`` are real: the first eight bytes at every place of the sources of
Python's standard library, so many as there are. Of the operations some insert new keys, the others look up keys that
are there, each as likely as the next one. They are called in batches of 1000, inserts and lookups in turn, and every
answer is checked.

The plan is made from the trace by ``tune``, as docs/index-planning.md tells readers. Then the planned configuration and
the peer run in turns, each time in a new process; figures are medians over the rounds, of processor seconds in the
calls alone. Writes ``benchmarks/results/index_workloads.json``.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import statistics
import sysconfig
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import loadmaster
from benchmarks import record
from loadmaster.executor.index import Configuration, GappedArray, Index
from loadmaster.executor.index.tune import tune
from loadmaster.models.index.features import features
from loadmaster.models.index.generators import make_keys
from loadmaster.models.index.presets import problem_of
from loadmaster.models.index.serving import words
from loadmaster.models.index.trace import INSERT, LOOKUP, Trace

DISTRIBUTIONS = ("uniform", "lognormal", "clustered", "text")
INSERTS = (1.0, 0.85, 0.15, 0.0)
BATCH = 1000
MARK = np.uint64(0x9E3779B97F4A7C15)
Keys = NDArray[np.uint64]


@functools.cache
def all_text() -> Keys:
    """List the different keys of real text, in random order."""
    sources = Path(sysconfig.get_paths()["stdlib"])
    found: list[Keys] = []
    for path in sorted([*sources.glob("*.py"), *sources.glob("*/*.py")]):
        places = np.frombuffer(path.read_bytes(), np.uint8)
        if len(places) >= 8:
            windows = np.lib.stride_tricks.sliding_window_view(places, 8)
            found.append(np.unique(np.ascontiguousarray(windows).view(">u8").ravel().astype(np.uint64)))
    return np.random.default_rng(3).permutation(np.unique(np.concatenate(found)))


def drawn(distribution: str, keys: int, operations: int, inserts: float) -> Trace:
    """Draw keys in random order: the first are loaded, the rest inserted."""
    random = np.random.default_rng(4)
    wanted = keys + round(operations * inserts)
    all_keys = all_text()[:wanted] if distribution == "text" else make_keys(distribution, wanted)
    if len(all_keys) < wanted:
        # Real keys are as many as there are: both numbers shrink by the same factor.
        operations = int(operations * len(all_keys) / wanted)
        keys = len(all_keys) - round(operations * inserts)
    all_keys = random.permutation(all_keys)
    writes = round(operations * inserts)
    codes = np.full(operations, LOOKUP, np.uint8)
    codes[np.linspace(0, operations - 1, writes).astype(np.int64)] = INSERT
    done = np.cumsum(codes == INSERT)
    # Any key that is there when the batch of the lookup begins.
    there = keys + np.concatenate([[0], done])[np.arange(operations) // BATCH * BATCH]
    asked = all_keys[(random.random(operations) * there).astype(np.int64)]
    asked[codes == INSERT] = all_keys[keys : keys + writes]
    return Trace(all_keys[:keys], codes, asked)


def run(trace: Trace, configuration: Configuration) -> dict[str, float]:
    """Load, run all operations in batches, check every answer."""
    keys = np.sort(trace.keys)
    start = time.process_time()
    index = Index(keys, keys ^ MARK, configuration, presorted=True)
    load_s, spent_s, wrong = time.process_time() - start, 0.0, 0
    for begin in range(0, len(trace.operations), BATCH):
        codes, asked = trace.operations[begin : begin + BATCH], trace.operation_keys[begin : begin + BATCH]
        new, old = asked[codes == INSERT], asked[codes == LOOKUP]
        marks = new ^ MARK
        start = time.process_time()
        payloads, found = index.lookup(old) if len(old) else (old, old)
        fresh = index.insert(new, marks) if len(new) else new
        spent_s += time.process_time() - start
        wrong += int((payloads != old ^ MARK).sum()) + int((found == 0).sum()) if len(old) else 0
        wrong += int((fresh == 0).sum()) if len(new) else 0
    assert wrong == 0, f"{wrong} answers are wrong"
    facts = index.facts()
    return {
        "load_s": load_s,
        "mops": len(trace.operations) / spent_s / 1e6,
        "bytes": facts.size_bytes,
        "huge_page_bytes": facts.huge_page_bytes,
        "pause_ms": facts.longest_change_us / 1e3,
    }


def planned(trace: Trace, seconds: float) -> tuple[Configuration, dict[str, Any]]:
    """Plan with trials; return the configuration and the figures that the plan expects."""
    start = time.monotonic()
    problem = problem_of("cell", [("cell", features(trace))], ordered=True)
    tuned = tune(problem, [trace], lambda p: loadmaster.plan(p, budget_bytes="1TiB"), seconds=seconds)
    choice = tuned.plan.choices[0]
    cost = tuned.problem.shards[0].costs[choice.candidate]
    assert cost is not None
    return tuned.problem.candidates[choice.candidate], {
        "planning_s": round(time.monotonic() - start, 1),
        "ran": len(tuned.ran),
        "expected_mops": round(len(trace.operations) / choice.time_us, 2),
        "expected_bytes": choice.peak_bytes,
        "expected_pause_ms": None if cost.pause_us is None else round(cost.pause_us.most / 1e3, 2),
    }


def cell(distribution: str, inserts: float, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one workload: the plan, then both in turns."""
    trace = drawn(distribution, options.keys, options.operations, inserts)
    configuration, expected = planned(trace, options.seconds)
    sides = {"peer": GappedArray(insert_share=inserts), "planned": configuration}
    taken: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    # A new process for each: no memory or cache of one serves another.
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        for _ in range(options.rounds):
            for side, of in sides.items():
                taken[side].append(pool.apply(run, (trace, of)))
    row: dict[str, Any] = {
        "distribution": distribution,
        "inserts": inserts,
        "keys": len(trace.keys),
        "operations": len(trace.operations),
        "planned": words(configuration),
        **expected,
    }
    for side, runs in taken.items():
        for figure in runs[0]:
            value = statistics.median(one[figure] for one in runs)
            row[f"{side}_{figure}"] = int(value) if "bytes" in figure else round(value, 3)
    row["times_peer"] = round(row["planned_mops"] / row["peer_mops"], 2)
    row["bytes_of_peer"] = round(row["planned_bytes"] / row["peer_bytes"], 2)
    return row


def main() -> None:
    """Measure every distribution and mix."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--operations", type=int, default=20_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0, help="for the plan of a workload, trials included")
    parser.add_argument("--only", nargs="*", default=DISTRIBUTIONS, choices=DISTRIBUTIONS)
    options = parser.parse_args()
    rows = []
    for distribution in options.only:
        for inserts in INSERTS:
            rows.append(cell(distribution, inserts, options))
            print(rows[-1], flush=True)
    print(record.write("index_workloads", {**vars(options), "rows": rows}))


if __name__ == "__main__":
    main()
