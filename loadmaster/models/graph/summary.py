"""Summary of a graph problem before it is planned: program, graph, GPU, and what the step needs by rule."""

from __future__ import annotations

from loadmaster.models.graph.limits import enough_bytes, least_bytes, whole_bytes
from loadmaster.models.graph.orders import orders
from loadmaster.models.graph.problem import GraphProblem
from loadmaster.models.summary import Summary
from loadmaster.models.units import show_at_least, show_bytes


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
