"""Plot of partition: bytes received by method, over those of the exact optimum."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from benchmarks.drawing import COMPILE, EAGER, OURS, Result

TITLES = {"wresnet-152-10": "WResNet-152-10", "rnn-4-8k": "RNN-4-8K", "rnn-10-8k": "RNN-10-8K"}
METHODS = {
    "auto": "exact",
    "recursive": "Tofu's recursion",
    "equal-chop": "one dimension each",
    "spartan": "Spartan",
    "all-row": "first dimensions",
    "no-reduction": "no sums over GPUs",
}
_COLOURS = (OURS, COMPILE, EAGER)


def compared(result: Result) -> dict[str, dict[str, Result]]:
    """Rows by model and method."""
    found: dict[str, dict[str, Result]] = {}
    for row in result["rows"]:
        if row["table"] == "methods":
            found.setdefault(row["model"], {})[row["method"]] = row
    return found


def split_over_gpus(result: Result) -> Figure:
    """Draw bars of bytes received for each method."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    axes = figure.subplots()
    by_model = compared(result)
    places = np.arange(len(METHODS))
    width = 0.8 / len(by_model)
    for n, ((name, found), colour) in enumerate(zip(by_model.items(), _COLOURS, strict=True)):
        over = [found[method]["objective"] / found["auto"]["objective"] for method in METHODS]
        bars = axes.bar(places + n * width, over, width, color=colour, label=TITLES[name])
        axes.bar_label(bars, [f"{value:.2f}" for value in over], fontsize=7)
    axes.set_yscale("log")
    axes.set_yticks([1, 2, 5, 10], ["1", "2", "5", "10"])
    axes.set_xticks(places + 0.4 - width / 2, METHODS.values())
    axes.set_ylabel("bytes received,\ntimes the optimum")
    axes.legend(loc="upper left")
    return figure
