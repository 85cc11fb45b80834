"""Plot of graph networks, and how rows of ``graph_layers`` are put side by side."""

from __future__ import annotations

from collections.abc import Iterable

from matplotlib.figure import Figure

from benchmarks.drawing import EAGER, OURS, Result, legend

MODELS = {"rgcn": "RGCN", "rgat": "RGAT", "hgt": "HGT"}
OURS_UNPLANNED = "loadmaster unplanned"
Cell = tuple[str, str, str]


def cell(row: Result) -> Cell:
    """Key of a row: layer, graph, and inference or training."""
    return row["model"], row["dataset"], row["mode"]


def measured(rows: Iterable[Result], system: str) -> dict[Cell, Result]:
    """Rows of a system, in the precision of the page."""
    return {cell(row): row for row in rows if row["system"] == system and _is_shown(row)}


def best_rivals(rows: Iterable[Result]) -> dict[Cell, Result]:
    """Rows of the fastest system that is not ours, in the precision of the page."""
    found: dict[Cell, Result] = {}
    for row in rows:
        if not row["system"].startswith("loadmaster") and _is_shown(row):
            found[cell(row)] = min(row, found.get(cell(row), row), key=lambda one: float(one["ms"]))
    return found


def _is_shown(row: Result) -> bool:
    return "ms" in row and row["precision"] == "high"


def graph_layers(result: Result) -> Figure:
    """A panel for each layer and pass: time by graph, ours and the fastest rival's."""
    figure = Figure(figsize=(9, 5), layout="constrained")
    graphs = list(dict.fromkeys(row["dataset"] for row in result["rows"]))
    lines = (
        (best_rivals(result["rows"]), "fastest rival that ran", EAGER, "s--"),
        (measured(result["rows"], "loadmaster"), "planned", OURS, "o-"),
    )
    panels = figure.subplots(2, len(MODELS), sharex=True, sharey="row")
    for mode, across in zip(("inference", "training"), panels, strict=True):
        for model, axes in zip(MODELS, across, strict=True):
            for of, label, colour, style in lines:
                points = [(at, of[model, name, mode]["ms"]) for at, name in enumerate(graphs)
                          if (model, name, mode) in of]  # fmt: skip
                axes.plot(*zip(*points, strict=True), style, color=colour, markersize=4, label=label)
            axes.set_title(f"{MODELS[model]}, {mode}")
            axes.set_yscale("log")
            axes.minorticks_off()
            axes.set_xticks(range(len(graphs)), graphs, rotation=60)
    figure.legend(*legend(figure), loc="outside upper center", ncols=2)
    figure.supxlabel("graphs, by number of edges")
    figure.supylabel("a call, ms")
    return figure
