"""A partition plan in a few lines of text: what moves, its proof, how tensors are split, what each layer moves."""

from __future__ import annotations

from loadmaster.api.columns import table
from loadmaster.api.report.partition.view import PartitionView
from loadmaster.api.report.words import check_row, fits, none_fits, peak_row, proof, under_budget
from loadmaster.models.partition.checker import PartitionCheck
from loadmaster.models.partition.plan import PartitionInfeasibility, PartitionPlan
from loadmaster.models.partition.sides import collectives
from loadmaster.models.units import show_at_least, show_bytes, show_cost

_MOST_TENSORS = 20
_MOST_LAYERS = 12


def summary(plan: PartitionPlan) -> str:
    """The lines that ``plan`` and ``show`` print."""
    return under_budget(plan, _infeasible_rows, _rows, " a GPU")


def infeasible(plan: PartitionPlan) -> str:
    """Explain why there is no plan, and how much more budget it takes."""
    return none_fits(plan, _why, " a GPU")


def _why(found: PartitionInfeasibility) -> str:
    return (
        f"it needs {show_bytes(found.short_bytes)} more, at least {found.minimum_budget_bytes} bytes "
        f"(proved){_planned(found)}. The largest tensors at {found.where} are {', '.join(found.largest)}."
    )


def _planned(found: PartitionInfeasibility) -> str:
    planned = found.planned_budget_bytes
    if planned is None:
        return ""
    if planned == found.minimum_budget_bytes:
        return ", which have a plan"
    return f"; {planned} bytes ({show_bytes(planned)}) have a plan"


def verdict(plan: PartitionPlan, check: PartitionCheck) -> str:
    """The checker's findings in one line: the peak, and the bytes that GPUs receive."""
    return f"peak {fits(plan, check.peak_bytes)} at {check.peak_at}, all GPUs receive {show_bytes(check.moved_bytes)}"


def details(view: PartitionView) -> str:
    """Tables of how tensors are split, by axis, and of what moves, by layer."""
    lines = ["", table(tensor_rows(view, _MOST_TENSORS), tensor_header(view))]
    if view.workers:
        lines += ["", table(worker_rows(view), WORKER_HEADER)]
    if view.layers:
        lines += ["", table(layer_rows(view, _MOST_LAYERS), LAYER_HEADER)]
    counts = collectives(view.problem, view.splits)
    if counts:
        lines += ["", f"one step runs {', '.join(f'{count} x {name}' for name, count in sorted(counts.items()))}"]
    return "\n".join(lines)


def tensor_header(view: PartitionView) -> list[str]:
    """The header of the table of tensors, with a column for each axis of the mesh."""
    on_one = "on one GPU" if all(axis.is_even for axis in view.problem.axes) else "on one GPU at most"
    return ["tensor", "times", "role", "shape", *(f"{a.name} ({a.size})" for a in view.problem.axes), on_one]


def tensor_rows(view: PartitionView, most: int) -> list[list[str]]:
    """Rows of the table of tensors, the largest ones."""
    return [
        [
            row.name,
            str(row.count),
            row.role,
            " x ".join(map(str, row.shape)) or "one number",
            *row.parts,
            show_bytes(row.worker_bytes),
        ]
        for row in view.rows[:most]
    ]


WORKER_HEADER = ["share of what is split", "GPUs", "holds at most", "of"]


def worker_rows(view: PartitionView) -> list[list[str]]:
    """Rows of the table of GPUs, where they differ: their shares along each axis, and what they hold."""
    return [
        [
            " x ".join(f"{share}/{units}" for share, units in zip(row.worker.shares, row.worker.units, strict=True)),
            str(row.count),
            show_bytes(row.held_bytes),
            show_bytes(row.limit_bytes),
        ]
        for row in view.workers
    ]


LAYER_HEADER = ["layer", "times", "redistributions", "all GPUs receive", "time"]


def layer_rows(view: PartitionView, most: int) -> list[list[str]]:
    """Rows of the table of layers, those that move most."""
    busiest = sorted(view.layers, key=lambda layer: (-layer.received_bytes, -layer.time_us))[:most]
    return [
        [
            layer.name,
            str(layer.count),
            str(layer.redistributions),
            show_bytes(layer.received_bytes),
            show_cost(layer.time_us, "us"),
        ]
        for layer in busiest
    ]


def _rows(plan: PartitionPlan) -> list[tuple[str, str]]:
    assert plan.objective is not None
    what = "moves" if plan.unit == "bytes" else "step"
    rows = [(what, show_cost(plan.objective, plan.unit)), ("proof", proof(plan))]
    rows += peak_row(plan, "an unnamed operator", each=" on a GPU")
    check = plan.check
    if "moved_bytes" in check and "transfer_us" in check:
        time = f"{show_cost(check['transfer_us'], 'us')} in collectives"
        rows.append(("traffic", f"all GPUs receive {show_bytes(check['moved_bytes'])}, {time}"))
    return [*rows, check_row(plan)]


def _infeasible_rows(found: PartitionInfeasibility) -> list[tuple[str, str]]:
    rows = [
        ("minimum", f"{show_at_least(found.minimum_budget_bytes)} ({found.minimum_budget_bytes} bytes) a GPU, proved"),
        ("short", f"{show_bytes(found.short_bytes)} more are needed"),
        ("where", found.where),
        ("largest", ", ".join(found.largest)),
    ]
    if found.planned_budget_bytes is not None:
        planned = found.planned_budget_bytes
        rows.insert(1, ("planned", f"{show_at_least(planned)} ({planned} bytes) a GPU have a plan"))
    return rows
