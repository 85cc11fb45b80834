"""Predicted and measured times of an index compared: every candidate that ran on a shard."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from statistics import median

from loadmaster.api.report.chart import LogChart, decades
from loadmaster.api.report.picture import Picture
from loadmaster.models.index.plan import IndexPlan
from loadmaster.models.index.problem import IndexProblem
from loadmaster.models.index.serving import operations_us, words


@dataclass(frozen=True)
class Run:
    """One candidate that ran on a shard, and whether the plan chose it. Times are of an operation, in the mix of the
    horizon."""

    shard: str
    configuration: str
    predicted_ns: float
    measured_ns: float
    chosen: bool

    @property
    def ratio(self) -> float:
        """Measured over predicted time of an operation."""
        return self.measured_ns / self.predicted_ns


def runs(problem: IndexProblem, plan: IndexPlan) -> list[Run]:
    """Select the candidates whose predicted and measured times are both known and above zero."""
    found = []
    for shard, choice in zip(problem.shards, plan.choices, strict=True):
        for c, cost in enumerate(shard.costs):
            if cost is None or cost.predicted is None or not shard.operations.total:
                continue
            was, now = (1e3 * operations_us(shard, of) / shard.operations.total for of in (cost.predicted, cost))
            if was > 0 and now > 0:
                found.append(Run(shard.name, words(problem.candidates[c]), was, now, c == choice.candidate))
    return found


def runs_words(found: Sequence[Run]) -> str:
    """Say in a sentence how far off predictions were."""
    ratios = sorted(run.ratio for run in found)
    spread = f"{ratios[0]:.2g} to {ratios[-1]:.2g} times what was predicted, half of them {median(ratios):.2g} at most"
    return f"{len(found)} candidates ran on their shards, and took {spread}."


def runs_picture(found: Sequence[Run]) -> Picture:
    """A point for every run; what came as predicted is on the line."""
    values = [ns for run in found for ns in (run.predicted_ns, run.measured_ns)]
    labels = [(at, f"{at:g}") for at in decades(min(values), max(values))]
    ends = math.log10(labels[0][0]), math.log10(labels[-1][0])
    chart = LogChart(ends, ends, height=460)
    chart.log_axes(labels, labels, ("predicted, ns an operation", "measured, ns an operation"))
    line = f"M{chart.px(ends[0])} {chart.py(ends[0])}L{chart.px(ends[1])} {chart.py(ends[1])}"
    chart.add(f'<path d="{line}" stroke="var(--quiet)" stroke-dasharray="6 4"/>')
    for run in sorted(found, key=lambda run: run.chosen):
        x, y = chart.px(math.log10(run.predicted_ns)), chart.py(math.log10(run.measured_ns))
        said = f"{run.shard}, {run.configuration}: predicted {run.predicted_ns:.0f} ns, measured {run.measured_ns:.0f}"
        colour = "plan" if run.chosen else "freed"
        chart.add(f'<circle cx="{x}" cy="{y}" r="4" fill="var(--{colour})"><title>{escape(said)}</title></circle>')
    legend = [("plan", "chosen"), ("freed", "ran, not chosen")]
    drawing = chart.drawing("Predicted and measured time of an operation")
    return Picture(drawing, "Predicted against measured", runs_words(found), legend)
