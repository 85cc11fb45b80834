"""Measurement of the step of a training plan: its peak, its time, and the allocated bytes over one step.

``loadmaster show PLAN.json --measured FILE`` draws it over what was planned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from loadmaster.models.documents import Document
from loadmaster.models.step_measurement import (
    MOST_POINTS,
    StepMeasurement,
    read_step_measurement,
    step_measurement,
    write_measurement,
)
from loadmaster.models.training.plan import TrainingPlan

__all__ = ["MOST_POINTS", "TrainingMeasurement", "measured", "read_measurement", "write_measurement"]


@dataclass(frozen=True)
class TrainingMeasurement(StepMeasurement):
    """Measurement of one training plan that ran on one device."""

    kind: Literal["training"] = "training"


def measured(
    plan: TrainingPlan, device: str, peak_bytes: int, step_us: float, levels: Sequence[tuple[float, int]]
) -> TrainingMeasurement:
    """Make the measurement of a feasible plan, from (time, bytes from then on) of a profiled step, the last at its
    end."""
    return step_measurement(TrainingMeasurement, plan, device, (peak_bytes, step_us), levels)


def read_measurement(document: Document, plan: TrainingPlan) -> TrainingMeasurement:
    """Read the measurement of a plan from its document. ``InputError`` names the field that cannot be used."""
    return read_step_measurement(TrainingMeasurement, document, plan)
