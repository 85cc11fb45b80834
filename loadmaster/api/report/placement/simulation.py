"""Demand policies compared with a checked plan: a table, bytes over the step, and where each waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from loadmaster.api.columns import table
from loadmaster.api.report.chart import Chart, RowChart
from loadmaster.api.report.page import html_table, page, shown
from loadmaster.api.report.picture import Picture
from loadmaster.api.report.views import Simulated
from loadmaster.errors import InputError
from loadmaster.models.documents import expect_problem
from loadmaster.models.placement.checker import check
from loadmaster.models.placement.plan import PlacementPlan
from loadmaster.models.placement.policies.outcome import PolicyRun, of_plan, run_policy
from loadmaster.models.placement.policies.simulator import expect_budget
from loadmaster.models.placement.problem import PlacementProblem
from loadmaster.models.units import byte_scale, show_bytes, show_cost, show_share

_COLOURS = {"plan": "plan", "lru": "recompute", "belady": "offloaded", "correlation": "backward"}
_HEADER = ["policy", "step", "against no limit", "waits", "faults", "stored", "loaded", "dropped", "peak"]
_ROW_HEIGHT = 26


def simulate(
    problem: PlacementProblem, policies: Sequence[str], budget_bytes: int, plan: PlacementPlan | None
) -> Simulated:
    """Run each policy; ``plan`` is the one that the policy of that name follows. Raises InputError if an operator alone
    needs more than the budget, or the plan is of another problem or does not hold."""
    expect_budget(problem, budget_bytes)
    runs = tuple(
        _run_plan(problem, plan, budget_bytes) if name == "plan" else run_policy(problem, name, budget_bytes)
        for name in policies
    )
    seen = Comparison(problem, budget_bytes, runs)
    return Simulated(in_words(seen), document(seen), lambda: comparison_page(seen))


@dataclass(frozen=True)
class Comparison:
    """Runs on one problem under one budget."""

    problem: PlacementProblem
    budget_bytes: int
    runs: tuple[PolicyRun, ...]

    def over(self, run: PolicyRun) -> float | None:
        """The step as a multiple of that with memory to spare."""
        compute_us = self.problem.compute_us
        return run.last_us / compute_us if compute_us else None


def _run_plan(problem: PlacementProblem, plan: PlacementPlan | None, budget_bytes: int) -> PolicyRun:
    if plan is None or plan.moves is None:
        raise InputError("--plan", None, "holds no moves to replay", "Give a plan that was found.")
    expect_problem(plan.problem_sha256, problem.sha256)
    verdict = check(problem, plan.moves, budget_bytes)
    if not verdict.ok:
        remedy = "Plan the problem again, under this budget."
        raise InputError("--plan", plan.name, verdict.violations[0], remedy)
    return of_plan(problem, plan.moves, verdict)


def in_words(seen: Comparison) -> str:
    """The table of all runs, below a line that says what they are of."""
    compute = show_cost(seen.problem.compute_us, seen.problem.unit)
    head = f"{seen.problem.name} under {show_bytes(seen.budget_bytes)}; with memory to spare a step takes {compute}"
    return f"{head}\n\n{table(_rows(seen), _HEADER)}"


def _rows(seen: Comparison) -> list[list[str]]:
    rows = []
    for run in seen.runs:
        over = seen.over(run)
        moved = (run.stored_bytes, run.loaded_bytes, run.dropped_bytes, run.peak_bytes)
        rows.append(
            [
                run.policy,
                show_cost(run.last_us, seen.problem.unit),
                "" if over is None else f"{over:.3f} x",
                show_cost(run.total_stall_us, seen.problem.unit),
                str(run.faults),
                *map(show_bytes, moved),
            ]
        )
    return rows


def document(seen: Comparison) -> dict[str, Any]:
    """The figures of all runs as a JSON document."""
    return {
        "name": seen.problem.name,
        "problem_sha256": seen.problem.sha256,
        "budget_bytes": seen.budget_bytes,
        "compute_us": seen.problem.compute_us,
        "policies": [
            {
                "policy": run.policy,
                "step_us": run.last_us,
                "steps_us": list(run.step_us),
                "stall_us": run.total_stall_us,
                "faults": run.faults,
                "faults_by_step": list(run.faults_by_step),
                "stored_bytes": run.stored_bytes,
                "loaded_bytes": run.loaded_bytes,
                "dropped_bytes": run.dropped_bytes,
                "peak_bytes": run.peak_bytes,
            }
            for run in seen.runs
        ],
    }


def comparison_page(seen: Comparison) -> str:
    """The comparison as one HTML file."""
    lead = f"{seen.problem.title or seen.problem.name}, under {show_bytes(seen.budget_bytes)}"
    figures = html_table(_HEADER, _rows(seen), numbers=range(1, len(_HEADER)))
    return page(f"Policies on {seen.problem.name}", lead, [figures, *map(shown, pictures(seen))])


def pictures(seen: Comparison) -> list[Picture]:
    """Waits by policy, and bytes over the step."""
    return [waits(seen), residency(seen)]


def waits(seen: Comparison) -> Picture:
    """A row for each policy: when it runs and when it waits."""
    chart = RowChart((0.0, _longest_ms(seen)), [run.policy for run in seen.runs], _ROW_HEIGHT, 112)
    chart.row_axes("milliseconds")
    for n, run in enumerate(seen.runs):
        over = seen.over(run)
        words = f"{run.policy}: {show_cost(run.last_us, seen.problem.unit)}"
        words += "" if over is None else f", {over:.3f} x the step with memory to spare"
        chart.bar(n, 0.0, run.last_us / 1e3, 'fill="var(--forward)"', words)
        for i, operator in enumerate(seen.problem.operators):
            stall, start = float(run.stall_us[i]), float(run.starts_us[i])
            if stall > 0:
                said = f"{i}: {operator.words} waits {show_cost(stall, 'us')}"
                chart.bar(n, (start - stall) / 1e3, start / 1e3, 'fill="var(--budget)"', said)
    totals = ", ".join(
        f"{run.policy} {show_share(run.total_stall_us / run.last_us if run.last_us else 0.0)}" for run in seen.runs
    )
    return Picture(
        chart.drawing("When the step runs and when it waits for copies, by policy"),
        heading="Where each policy waits",
        caption=f"The last step that was simulated. Waiting: {totals} of it.",
        legend=[("forward", "runs"), ("budget", "waits for copies")],
    )


def residency(seen: Comparison) -> Picture:
    """A line of bytes on the device for each policy, each over its own step."""
    factor, unit = byte_scale(seen.budget_bytes)
    chart = Chart((0.0, _longest_ms(seen)), (0.0, seen.budget_bytes / factor * 1.1))
    chart.axes("milliseconds", unit)
    for run in seen.runs:
        line = ""
        for start, stall, size in zip(run.starts_us, run.stall_us, run.resident_bytes, strict=True):
            x, y = chart.px(float(start - stall) / 1e3), chart.py(int(size) / factor)
            line += f"H{x}V{y}" if line else f"M{x} {y}"
        line += f"H{chart.px(run.last_us / 1e3)}"
        chart.add(f'<path d="{line}" fill="none" stroke="var(--{_COLOURS[run.policy]})" stroke-width="1.5"/>')
    chart.rule(seen.budget_bytes / factor, "budget", f"budget {show_bytes(seen.budget_bytes)}")
    return Picture(
        chart.drawing("Bytes on the device over one training step, by policy, below the budget"),
        heading="Memory over the step",
        caption="The most on the device while each operator waits and runs.",
        legend=[(_COLOURS[run.policy], run.policy) for run in seen.runs],
    )


def _longest_ms(seen: Comparison) -> float:
    return max(run.last_us for run in seen.runs) / 1e3
