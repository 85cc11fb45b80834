"""Comparison of what people do without a plan, and a plan, on one training step: in words, as figures, and on a page.

Each is replayed by the checker's clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from loadmaster.api.columns import table
from loadmaster.api.report.chart import Chart, RowChart
from loadmaster.api.report.over_time import Line
from loadmaster.api.report.page import html_table, page, shown
from loadmaster.api.report.picture import Picture
from loadmaster.api.report.training.pictures import links
from loadmaster.api.report.training.view import Replayed
from loadmaster.api.report.views import Simulated
from loadmaster.errors import InputError
from loadmaster.models.documents import expect_problem
from loadmaster.models.training.checker import check
from loadmaster.models.training.limits import least_bytes, plain_us
from loadmaster.models.training.plan import TrainingPlan
from loadmaster.models.training.problem import TrainingProblem
from loadmaster.models.units import byte_scale, show_bytes, show_cost, show_share
from loadmaster.planner.training.outlook import by_baseline, known_bound_us

_COLOURS = {
    "plan": "plan",
    "plain": "freed",
    "checkpoint": "recompute",
    "zero-offload": "offloaded",
    "fsdp": "backward",
    "by-hand": "ink",
    "zero-infinity": "forward",
}
_HEADER = ["policy", "step", "against plain", "waits", "stored", "loaded", "host memory", "host updates", "peak"]
_ROW_HEIGHT = 26


def simulate(
    problem: TrainingProblem, policies: Sequence[str], budget_bytes: int, plan: TrainingPlan | None
) -> Simulated:
    """Replay each baseline with the fewest changes that fit; ``plan`` is the one that the policy of that name follows.
    Raises InputError if no plan fits the budget, or the plan is of another problem or does not hold."""
    least, where = least_bytes(problem)
    if least > budget_bytes:
        said = f"is too small: {show_bytes(least)} ({least} bytes) are needed at {where}"
        raise InputError("budget_bytes", show_bytes(budget_bytes), said, "Give more.")
    runs = {
        name: _planned(problem, plan, budget_bytes) if name == "plan" else _by_rule(problem, name, budget_bytes)
        for name in policies
    }
    seen = Comparison(problem, budget_bytes, known_bound_us(problem, budget_bytes), runs)
    return Simulated(in_words(seen), document(seen), lambda: comparison_page(seen))


@dataclass(frozen=True)
class Comparison:
    """Runs on one problem under one budget, by policy; None where a policy does not fit. No plan takes less than
    ``bound_us``; where that is infinite, none fits."""

    problem: TrainingProblem
    budget_bytes: int
    bound_us: float
    runs: dict[str, Replayed | None]

    @property
    def fitting(self) -> dict[str, Replayed]:
        """The runs that there are."""
        return {name: run for name, run in self.runs.items() if run is not None}

    @property
    def bound_words(self) -> str:
        """The bound in words."""
        if self.bound_us == math.inf:
            return "no plan fits"
        return f"no plan takes less than {show_cost(self.bound_us, self.problem.unit)}"

    @property
    def longest_us(self) -> float:
        """Time of the longest step."""
        return max((run.check.step_us for run in self.fitting.values()), default=0.0)


def _planned(problem: TrainingProblem, plan: TrainingPlan | None, budget_bytes: int) -> Replayed:
    if plan is None or plan.schedule is None:
        raise InputError("--plan", None, "holds no schedule to replay", "Give a plan that was found.")
    expect_problem(plan.problem_sha256, problem.sha256)
    verdict = check(problem, plan.schedule, budget_bytes)
    if verdict.timeline is None:
        remedy = "Plan the problem again, under this budget."
        raise InputError("--plan", plan.name, verdict.violations[0], remedy)
    return Replayed(problem, plan.schedule, verdict, verdict.timeline)


def _by_rule(problem: TrainingProblem, name: str, budget_bytes: int) -> Replayed | None:
    found = by_baseline(problem, name, budget_bytes)
    if found is None:
        return None
    verdict = check(problem, found.schedule, budget_bytes)
    assert verdict.timeline is not None, verdict.violations
    return Replayed(problem, found.schedule, verdict, verdict.timeline)


def in_words(seen: Comparison) -> str:
    """The table of all runs, below a line that says what they are of."""
    plain = show_cost(plain_us(seen.problem), seen.problem.unit)
    head = f"{seen.problem.name} under {show_bytes(seen.budget_bytes)}; with everything on the device a step takes "
    head += f"{plain}; {seen.bound_words}"
    return f"{head}\n\n{table(_rows(seen), _HEADER)}"


def _rows(seen: Comparison) -> list[list[str]]:
    rows, plain, unit = [], plain_us(seen.problem), seen.problem.unit
    for name, run in seen.runs.items():
        if run is None:
            lacks_disk = name == "zero-infinity" and seen.problem.disk is None
            said = "needs a disk" if lacks_disk else "does not fit"
            rows.append([name, said, *[""] * (len(_HEADER) - 2)])
            continue
        check = run.check
        rows.append(
            [
                name,
                show_cost(check.step_us, unit),
                f"{check.step_us / plain:.3f} x" if plain else "",
                show_cost(check.stall_us, unit),
                *map(show_bytes, (check.stored_bytes, check.loaded_bytes, check.host_bytes)),
                show_cost(check.host_updates_us, unit),
                show_bytes(check.peak_bytes),
            ]
        )
    return rows


def document(seen: Comparison) -> dict[str, Any]:
    """The figures of all runs as a JSON document."""
    return {
        "name": seen.problem.name,
        "problem_sha256": seen.problem.sha256,
        "budget_bytes": seen.budget_bytes,
        "plain_us": plain_us(seen.problem),
        "bound_us": None if seen.bound_us == math.inf else seen.bound_us,
        "policies": [
            {"policy": name, "fits": run is not None, **({} if run is None else _figures(run))}
            for name, run in seen.runs.items()
        ],
    }


def _figures(run: Replayed) -> dict[str, object]:
    return {name: value for name, value in run.check.summary().items() if name != "ok"}


def comparison_page(seen: Comparison) -> str:
    """The comparison as one HTML file."""
    lead = f"{seen.problem.title or seen.problem.name}, under {show_bytes(seen.budget_bytes)}"
    figures = html_table(_HEADER, _rows(seen), numbers=range(1, len(_HEADER)))
    return page(f"Policies on {seen.problem.name}", lead, [figures, *map(shown, pictures(seen))])


def pictures(seen: Comparison) -> list[Picture]:
    """Waits by policy, bytes over the step, and the links of each policy, all on one scale of time."""
    if not seen.longest_us:
        return []
    beside = [links(run, f"Links and updates: {name}", seen.longest_us) for name, run in seen.fitting.items()]
    return [waits(seen), memory(seen), *beside]


def waits(seen: Comparison) -> Picture:
    """A row for each policy: when the device runs and when it waits."""
    runs = seen.fitting
    chart = RowChart((0.0, seen.longest_us / 1e3), list(runs), _ROW_HEIGHT, 112)
    chart.row_axes("milliseconds")
    for n, (name, run) in enumerate(runs.items()):
        step_us = run.check.step_us
        chart.bar(n, 0.0, step_us / 1e3, 'fill="var(--forward)"', f"{name}: {show_cost(step_us, 'us')}")
        for event, wait in run.waits:
            start, said = event.start_us, f"{event.words} waits {show_cost(wait, 'us')}"
            chart.bar(n, (start - wait) / 1e3, start / 1e3, 'fill="var(--budget)"', said)
    totals = ", ".join(f"{name} {show_share(run.check.stall_us / run.check.step_us)}" for name, run in runs.items())
    return Picture(
        chart.drawing("When the device runs and when it waits for copies and the host, by policy"),
        heading="Where each policy waits",
        caption=f"Waiting: {totals} of the step; {seen.bound_words}.",
        legend=[("forward", "runs"), ("budget", "waits for copies and the host")],
    )


def memory(seen: Comparison) -> Picture:
    """A line of bytes on the device for each policy, each over its own step."""
    factor, unit = byte_scale(seen.budget_bytes)
    chart = Chart((0.0, seen.longest_us / 1e3), (0.0, seen.budget_bytes / factor * 1.1))
    chart.axes("milliseconds", unit)
    for name, run in seen.fitting.items():
        Line(run.steps, _COLOURS[name]).draw(chart, factor)
    chart.rule(seen.budget_bytes / factor, "budget", f"budget {show_bytes(seen.budget_bytes)}")
    return Picture(
        chart.drawing("Bytes on the device over one training step, by policy, below the budget"),
        heading="Memory over the step",
        caption="Bytes on the device while each phase runs or waits.",
        legend=[(_COLOURS[name], name) for name in seen.fitting],
    )
