"""Plots of placement: simulated training state, the pager under a limit, the tensor cache."""

from __future__ import annotations

from matplotlib.figure import Figure

from benchmarks.drawing import CHECKPOINT, COMPILE, EAGER, OURS, TITLES, Result, columns, legend


def training_state(result: Result) -> Figure:
    """A panel for each trace: step time against the budget, plans and policies, and the proved bound."""
    names = list(dict.fromkeys(row["trace"] for row in result["rows"]))
    figure = Figure(figsize=(9, 5.6), layout="constrained")
    panels = figure.subplots(2, -(-len(names) // 2)).flat
    lines = (
        ("lru", "LRU, on demand", EAGER, "s--"),
        ("correlation", "correlation prefetching", COMPILE, "^-"),
        ("plan", "plan", OURS, "o-"),
        ("bound", "proved bound", OURS, ":"),
    )
    for name, axes in zip(names, panels, strict=False):
        rows = [row for row in result["rows"] if row["trace"] == name and "plan" in row]
        for key, label, colour, style in lines:
            points = [(100 * row["share"], row[key]) for row in rows]
            axes.plot(*columns(points), style, color=colour, markersize=3, label=label)
        axes.set_title(TITLES[name])
        axes.set_ylim(bottom=0)
        axes.invert_xaxis()
    figure.legend(*legend(figure), loc="outside upper center", ncols=4)
    figure.supxlabel("device memory, % of what the step needs if nothing leaves")
    figure.supylabel("step, times that with memory to spare")
    return figure


def under_a_limit(result: Result) -> Figure:
    """A panel for each model: measured steps of the pager against the limit, and the bound."""
    cases = list(dict.fromkeys(row["case"] for row in result["rows"]))
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    lines = (
        ("demand", "step_ms", "by demand", EAGER, "s--"),
        ("correlation", "step_ms", "correlation prefetching", COMPILE, "^-"),
        ("planned", "step_ms", "planned", OURS, "o-"),
        ("planned", "bound_ms", "proved bound", OURS, ":"),
    )
    for case, axes in zip(cases, figure.subplots(1, len(cases), squeeze=False).flat, strict=True):
        rows = [row for row in result["rows"] if row["case"] == case]
        for method, key, label, colour, style in lines:
            points = [(100 * row["share"], row[key]) for row in rows if row["method"] == method and key in row]
            if points:
                axes.plot(*columns(points), style, color=colour, markersize=4, label=label)
        plain = next(row for row in rows if row["method"] == "plain")
        axes.axhline(plain["step_ms"], color="black", linewidth=0.8, label="plain PyTorch, all memory")
        axes.set_title(TITLES[case])
        axes.set_ylim(bottom=0)
        axes.invert_xaxis()
    figure.legend(*legend(figure), loc="outside upper center", ncols=5)
    figure.supxlabel("device memory, % of what the step takes without a limit")
    figure.supylabel("step, ms")
    return figure


def tensor_cache(result: Result) -> Figure:
    """A panel for each model: step time against the peak of each way to save memory."""
    cases = list(dict.fromkeys(row["case"] for row in result["rows"]))
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    ways = (
        ("plain", "plain PyTorch", EAGER, "D"),
        ("save_on_cpu", "save_on_cpu", COMPILE, "s"),
        ("checkpoint", "checkpointed blocks", CHECKPOINT, "^"),
        ("cache", "cache, auto", OURS, "o"),
        ("cache, all", "cache, everything", OURS, "v"),
        ("checkpoint and cache, all", "checkpointed blocks and cache", OURS, "P"),
    )
    for case, axes in zip(cases, figure.subplots(1, len(cases), squeeze=False).flat, strict=True):
        for method, label, colour, marker in ways:
            rows = [r for r in result["rows"] if r["case"] == case and r["method"] == method and "step_ms" in r]
            points = [(row["peak_gib"], row["step_ms"]) for row in rows]
            axes.plot(*columns(points), marker, color=colour, markersize=5, label=label)
        axes.set_title(TITLES[case])
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
    figure.legend(*legend(figure), loc="outside upper center", ncols=3)
    figure.supxlabel("measured peak, GiB")
    figure.supylabel("forward and backward pass, ms")
    return figure
