"""The picture of a partition plan: what moves in each layer."""

from __future__ import annotations

from loadmaster.api.report.bars import labelled_bars
from loadmaster.api.report.partition.view import View
from loadmaster.api.report.picture import Picture, png_bytes
from loadmaster.models.units import show_bytes, show_cost

_MOST_LAYERS = 24


def pictures(view: View) -> list[Picture]:
    """A bar of received bytes for each layer; no picture where nothing moves."""
    layers = sorted(view.layers, key=lambda layer: -layer.received_bytes)[:_MOST_LAYERS]
    if not layers:
        return []
    shown = set(layers)
    rows = [
        (
            layer.name,
            float(layer.received_bytes),
            f"{show_bytes(layer.received_bytes)}, {show_cost(layer.time_us, 'us')}",
        )
        for layer in view.layers
        if layer in shown
    ]
    caption = "What all GPUs receive for the operators of each layer."
    if left_out := len(view.layers) - len(layers):
        caption += f" {left_out} smaller ones are left out."
    return [Picture(labelled_bars(rows, "Bytes received, by layer"), heading="What moves", caption=caption)]


def plan_png(view: View) -> bytes:
    """A PNG of the pictures."""
    return png_bytes(view.plan.name, pictures(view))
