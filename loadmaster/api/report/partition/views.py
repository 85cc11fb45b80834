"""Views of partition plans: their page, the picture of what moves, and the table of tensors."""

from __future__ import annotations

from loadmaster.api.report.bars import labelled_bars
from loadmaster.api.report.csv_text import csv_bytes
from loadmaster.api.report.page import facts, html_table, page, shown
from loadmaster.api.report.partition.view import PartitionView, view
from loadmaster.api.report.partition.words import (
    LAYER_HEADER,
    WORKER_HEADER,
    details,
    infeasible,
    layer_rows,
    summary,
    tensor_header,
    tensor_rows,
    verdict,
    worker_rows,
)
from loadmaster.api.report.picture import Picture, png_bytes
from loadmaster.api.report.words import plan_facts
from loadmaster.models.units import show_bytes, show_cost

__all__ = [
    "csv",
    "details",
    "infeasible",
    "pictures",
    "plan_page",
    "png",
    "sections",
    "summary",
    "verdict",
    "view",
]

_MOST_TENSORS = 60
_MOST_LAYERS = 40
_MOST_LAYERS = 24


def plan_page(view: PartitionView) -> str:
    """The report of a feasible plan."""
    mesh = " x ".join(str(axis.size) for axis in view.problem.axes)
    lead = f"{view.problem.title or view.problem.name} on {mesh} GPUs, {show_bytes(view.plan.budget_bytes)} each"
    return page(view.plan.name, lead, sections(view))


def sections(view: PartitionView) -> list[str]:
    """The sections of the report as HTML, for other pages too."""
    header = tensor_header(view)
    found = [_facts(view), *map(shown, pictures(view))]
    found += [
        "<h2>How tensors are split</h2>",
        html_table(header, tensor_rows(view, _MOST_TENSORS), numbers=(1, len(header) - 1)),
    ]
    if view.workers:
        found += ["<h2>GPUs that differ</h2>", html_table(WORKER_HEADER, worker_rows(view), (1, 2, 3))]
    if view.layers:
        found += ["<h2>What moves most</h2>", html_table(LAYER_HEADER, layer_rows(view, _MOST_LAYERS), (1, 2, 3, 4))]
    return found


def _facts(view: PartitionView) -> str:
    plan, check = view.plan, view.check
    # Where nothing moves, there is nothing to say of how.
    moves = [
        ("collectives", show_cost(check.transfer_us, "us"), f"{show_bytes(check.moved_bytes)} received"),
        ("redistributions", str(len(check.redistributions)), "in every step"),
    ]
    what = "received" if plan.unit == "bytes" else "step"
    return facts(
        plan_facts(
            view, (what, "by all GPUs" if plan.unit == "bytes" else "planned"), moves if check.redistributions else []
        )
    )


def pictures(view: PartitionView) -> list[Picture]:
    """A bar of received bytes for each layer; no picture where nothing moves."""
    layers = sorted(view.layers, key=lambda layer: -layer.received_bytes)[:_MOST_LAYERS]
    if not layers:
        return []
    drawn = set(layers)
    rows = [
        (
            layer.name,
            float(layer.received_bytes),
            f"{show_bytes(layer.received_bytes)}, {show_cost(layer.time_us, 'us')}",
        )
        for layer in view.layers
        if layer in drawn
    ]
    caption = "What all GPUs receive for the operators of each layer."
    if left_out := len(view.layers) - len(layers):
        caption += f" {left_out} smaller ones are left out."
    return [Picture(labelled_bars(rows, "Bytes received, by layer"), heading="What moves", caption=caption)]


def png(view: PartitionView) -> bytes:
    """A PNG of the pictures."""
    return png_bytes(view.plan.name, pictures(view))


def csv(seen: PartitionView) -> bytes:
    """A row for every tensor: name, role, shape, its part on each axis."""
    rows = (
        [tensor.name, tensor.role, "x".join(map(str, tensor.shape)), *parts]
        for tensor, parts in zip(seen.problem.tensors, seen.splits.placements, strict=True)
    )
    return csv_bytes(["tensor", "role", "shape", *(axis.name for axis in seen.problem.axes)], rows)
