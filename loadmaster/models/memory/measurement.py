"""Measurement of the step of a memory plan: its peak, its time, and the allocated bytes over one step.

``fit`` writes it next to the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from loadmaster.models.documents import Document
from loadmaster.models.memory.plan import MemoryPlan
from loadmaster.models.step_measurement import (
    MOST_POINTS,
    StepMeasurement,
    read_step_measurement,
    step_measurement,
    write_measurement,
)

__all__ = ["MOST_POINTS", "MemoryMeasurement", "measured", "read_measurement", "write_measurement"]


@dataclass(frozen=True)
class MemoryMeasurement(StepMeasurement):
    """Measurement of one memory plan that ran on one device."""

    kind: Literal["memory"] = "memory"


def measured(
    plan: MemoryPlan, device: str, peak_bytes: int, step_us: float, levels: Sequence[tuple[float, int]]
) -> MemoryMeasurement:
    """Make the measurement of a feasible plan, from (time, bytes from then on) of a profiled step, the last at its
    end."""
    return step_measurement(MemoryMeasurement, plan, device, (peak_bytes, step_us), levels)


def read_measurement(document: Document, plan: MemoryPlan) -> MemoryMeasurement:
    """Read the measurement of a plan from its document. ``InputError`` names the field that cannot be used."""
    return read_step_measurement(MemoryMeasurement, document, plan)
