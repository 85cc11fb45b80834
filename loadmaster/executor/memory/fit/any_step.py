"""The two sorts of steps that a fit compiles."""

from __future__ import annotations

from loadmaster.executor.memory.run.apply import PlannedStep
from loadmaster.executor.memory.run.knob_step import KnobStep

AnyStep = PlannedStep | KnobStep
