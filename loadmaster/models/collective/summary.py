"""Summary of a collective in a few lines: what is sent, among whom, over what."""

from __future__ import annotations

from loadmaster.models.collective.problem import CollectiveProblem
from loadmaster.models.summary import Summary
from loadmaster.models.units import show_bytes


def summary(problem: CollectiveProblem) -> Summary:
    """The collective, its network, and the sizes that it is planned for."""
    topology = problem.topology
    rows = [
        ("collective", problem.collective + ("" if problem.root is None else f", root {problem.root}")),
        ("network", f"{topology.name}: {topology.rank_count} ranks on {topology.node_count} nodes"),
        ("planned for", ", ".join(map(show_bytes, problem.sizes_bytes))),
    ]
    if problem.sketch is not None:
        rows.append(("sketch", problem.sketch.name))
    return Summary(problem.name, tuple(rows), {"nodes": topology.node_count, "sizes_bytes": problem.sizes_bytes})
