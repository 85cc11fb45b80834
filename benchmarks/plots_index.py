"""Plot of indexes: planned configurations compared with the gapped array of ALEX."""

from __future__ import annotations

from matplotlib.figure import Figure

from benchmarks.drawing import EAGER, OURS, Result, legend


def index_workloads(result: Result) -> Figure:
    """A panel for each distribution of keys: throughput by the share of inserts, planned and peer."""
    names = list(dict.fromkeys(row["distribution"] for row in result["rows"]))
    figure = Figure(figsize=(9, 2.8), layout="constrained")
    for name, axes in zip(names, figure.subplots(1, len(names), squeeze=False).flat, strict=True):
        rows = [row for row in result["rows"] if row["distribution"] == name]
        for shift, side, label, colour in ((-0.2, "peer", "gapped array", EAGER), (0.2, "planned", "planned", OURS)):
            at = [n + shift for n in range(len(rows))]
            axes.bar(at, [row[f"{side}_mops"] for row in rows], 0.38, color=colour, label=label)
        axes.set_xticks(range(len(rows)), [f"{100 * row['inserts']:.0f} %" for row in rows])
        axes.set_title(name)
        axes.grid(axis="x", visible=False)
    figure.legend(*legend(figure), loc="outside upper center", ncols=2)
    figure.supxlabel("inserts among operations")
    figure.supylabel("million operations a second")
    return figure
