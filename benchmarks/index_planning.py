"""Planning 64 shards with trials: the choices compared with the best of all candidates, each measured.

    python -m benchmarks.index_planning

The predictor was fitted to other traces. These have other seeds, sizes and mixes of the distributions that it knows,
and the real keys of ``benchmarks.index_workloads``. All shards are planned at once by ``tune``, as
docs/index-planning.md tells readers, and once without trials. Then every candidate runs on whole traces of some shards,
and the least time of three runs counts. Writes ``benchmarks/results/index_planning.json``.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np

import loadmaster
from benchmarks import record
from benchmarks.index_workloads import all_text
from loadmaster.executor.index.measuring import measure
from loadmaster.executor.index.tune import tune
from loadmaster.models.index.features import features
from loadmaster.models.index.generators import DISTRIBUTIONS, Mix, make_trace
from loadmaster.models.index.plan import IndexPlan
from loadmaster.models.index.presets import problem_of
from loadmaster.models.index.problem import IndexProblem
from loadmaster.models.index.serving import serving, words
from loadmaster.models.index.trace import INSERT, LOOKUP, Trace

KEYS, OPERATIONS = (50_000, 100_000, 300_000), 2
MIXES = (
    Mix(inserts=0.0),
    Mix(inserts=0.3),
    Mix(inserts=0.6, zipf=True),
    Mix(inserts=0.95),
    Mix(inserts=0.1, erases=0.1),
)


def of_text(keys: int, mix: Mix, seed: int) -> Trace:
    """Make a trace of real keys; those that are not loaded are inserted, the loaded ones looked up."""
    random = np.random.default_rng(seed)
    drawn = random.permutation(all_text()[: 3 * keys])
    operations = OPERATIONS * keys
    codes = np.where(random.random(operations) < mix.inserts, INSERT, LOOKUP).astype(np.uint8)
    asked = random.choice(drawn[:keys], operations)
    writes = int((codes == INSERT).sum())
    asked[codes == INSERT] = drawn[keys : keys + writes]
    return Trace(drawn[:keys], codes, asked)


def held_out(shards: int) -> list[tuple[str, Trace]]:
    """Make traces by name, one for a shard."""
    found = []
    names = [*DISTRIBUTIONS, "text"]
    for n in range(shards):
        # Numbers without a common divisor: all combinations come.
        name, mix, keys = names[n % 7], MIXES[n % 5], KEYS[n % 3] + 1000 * n
        made = of_text(keys, mix, n) if name == "text" else make_trace(name, keys, OPERATIONS * keys, mix, 7000 + n)
        found.append((f"{name}-{n}", made))
    return found


def plan(problem: IndexProblem) -> IndexPlan:
    """Plan as a reader of the page does."""
    return loadmaster.plan(problem, budget_bytes="1TiB")


def whole_us(trace: Trace, problem: IndexProblem, c: int) -> float:
    """Time in us of all operations of a trace, as they ran."""
    came = measure(trace, problem.candidates[c], repeats=3)
    shares = ((LOOKUP, came.read_ns), (INSERT, came.write_ns))
    writes = int((trace.operations != LOOKUP).sum())
    counts = {LOOKUP: len(trace.operations) - writes, INSERT: writes}
    return sum(counts[code] * ns for code, ns in shares if ns is not None) / 1e3


def main() -> None:
    """Plan, then measure all candidates on some shards."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shards", type=int, default=64)
    parser.add_argument("--measured", type=int, default=20, help="shards on which all candidates run")
    options = parser.parse_args()
    traces = held_out(options.shards)
    begun = time.monotonic()
    problem = problem_of("store", [(name, features(trace)) for name, trace in traces])
    untried = plan(problem)
    without_s = time.monotonic() - begun
    begun = time.monotonic()
    tuned = tune(problem, [trace for _, trace in traces], plan)
    with_s = time.monotonic() - begun
    rows: list[dict[str, Any]] = []
    for s in np.linspace(0, len(traces) - 1, options.measured).astype(int).tolist():
        name, trace = traces[s]
        times = {c: whole_us(trace, problem, c) for c in serving(problem, problem.shards[s])}
        best = min(times, key=times.__getitem__)
        chosen, guessed = tuned.plan.choices[s].candidate, untried.choices[s].candidate
        rows.append(
            {
                "trace": name,
                "keys": len(trace.keys),
                "chosen": words(problem.candidates[chosen]),
                "best": words(problem.candidates[best]),
                "times_best": round(times[chosen] / times[best], 3),
                "times_best_without_trials": round(times[guessed] / times[best], 3),
                "times_best_of_the_worst": round(max(times.values()) / times[best], 3),
            }
        )
        print(rows[-1], flush=True)
    summary = {
        "shards": options.shards,
        "candidates": len(problem.candidates),
        "planning_s": round(with_s, 1),
        "planning_without_trials_s": round(without_s, 1),
        "ran": len(tuned.ran),
        "stopped_by": tuned.stopped_by,
        "mean_times_best": round(statistics.mean(row["times_best"] for row in rows), 3),
        "within_5_percent": sum(row["times_best"] <= 1.05 for row in rows),
    }
    print(record.write("index_planning", {**summary, "rows": rows}))


if __name__ == "__main__":
    main()
