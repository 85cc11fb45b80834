"""Budgets of a graph problem: what is enough by rule, what any plan needs, budgets in between."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from loadmaster.models.graph.inline import base, required
from loadmaster.models.graph.lowering import greedy_schedule, least_kept, lowered
from loadmaster.models.graph.orders import Order, orders
from loadmaster.models.graph.problem import GraphProblem
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.residence import lasting_bytes, peak_bytes, value_bytes
from loadmaster.models.graph.schedule import Schedule
from loadmaster.models.summary import Summary
from loadmaster.models.units import show_at_least, show_bytes


def by_rule(problem: GraphProblem) -> Iterator[tuple[Order, Program, Schedule]]:
    """Iterate over schedules by rule: for every order the greedy one, and the one that keeps least."""
    for order in orders(problem.program):
        step = problem.step(order.program)
        yield order, step, greedy_schedule(step)
        yield order, step, lowered(step, least_kept(step))


@lru_cache(maxsize=32)
def _peaks(problem: GraphProblem) -> tuple[int, int]:
    peaks = [peak_bytes(problem, step, schedule) for _, step, schedule in by_rule(problem)]
    return min(peaks), max(peaks)


def whole_bytes(problem: GraphProblem) -> int:
    """Peak bytes of the step in its largest order, scheduled by rule, with all feature rows on the GPU."""
    store = problem.store
    return _peaks(problem)[1] + (0 if store is None else store.rows * store.row_bytes)


def enough_bytes(problem: GraphProblem) -> int:
    """Peak bytes of the step in its smallest order, scheduled by rule: a budget that is enough."""
    return _peaks(problem)[0]


def least_bytes(problem: GraphProblem) -> int:
    """Bytes that every plan needs: what lasts, with the results, or with the largest value that every plan keeps."""
    return min(_least(problem, problem.step(order.program)) for order in orders(problem.program))


def _least(problem: GraphProblem, step: Program) -> int:
    results = {base(step, n) for n in step.results}
    largest = max((value_bytes(problem, step, n) for n in required(step)), default=0)
    at_the_end = sum(value_bytes(problem, step, n) for n in results if step.values[n].inputs)
    return lasting_bytes(problem, step) + max(largest, at_the_end)


def spread(problem: GraphProblem, count: int) -> list[int]:
    """Make ``count`` budgets from what is enough to the whole, ascending, evenly spread."""
    return sorted({int(b) for b in np.linspace(enough_bytes(problem), whole_bytes(problem), count)})


def summary(problem: GraphProblem) -> Summary:
    """Summarize a graph problem before anything is planned."""
    statistics, whole, least = problem.statistics, whole_bytes(problem), least_bytes(problem)
    edges = statistics.rows("edge")
    compaction = {end: statistics.rows(f"{end}_pair") / edges for end in ("source", "target")}  # type: ignore[arg-type]
    count = len(orders(problem.program))
    passes = "forward and backward" if problem.training else "forward"
    rows = [
        ("step", f"{passes}, {problem.element_bytes} bytes a number, {count} orders of the program"),
        (
            "graph",
            f"{edges / statistics.rows('node'):.1f} edges for each node, {statistics.rows('node_type')} node types",
        ),
        (
            "pairs",
            f"{compaction['source']:.2f} sources and {compaction['target']:.2f} targets by relation for each edge",
        ),
        ("whole", f"{show_bytes(whole)} ({whole} bytes) in its largest order, by rule"),
        ("enough", f"{show_bytes(enough_bytes(problem))} ({enough_bytes(problem)} bytes) in its smallest"),
        ("least", f"{show_at_least(least)} ({least} bytes): no plan needs less"),
        (
            "GPU",
            f"{problem.hardware.name}, {problem.hardware.dram_gbps:g} GB/s, {problem.hardware.launch_us:g} us a launch",
        ),
    ]
    if (store := problem.store) is not None:
        size = show_bytes(store.rows * store.row_bytes)
        rows.append(("features", f"{size} in {store.rows} rows, {store.reads} read a step at {store.link_gbps:g} GB/s"))
    figures = {
        "whole_bytes": whole,
        "enough_bytes": enough_bytes(problem),
        "least_budget_bytes": least,
        "orders": count,
        "source_compaction": compaction["source"],
        "target_compaction": compaction["target"],
    }
    return Summary(problem.name, tuple(rows), figures)
