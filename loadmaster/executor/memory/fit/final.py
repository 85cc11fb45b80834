"""The last word between two sides: their fastest steps are timed once more, in turns.

Trials are minutes apart. A processor that others use, too, is half again as fast in one as in the next, and a step of
short kernels with it. In turns, both steps have the same of it.
"""

from __future__ import annotations

import statistics

import torch

from loadmaster.executor.memory.fit.knob import KnobSide
from loadmaster.executor.memory.fit.planned import PlannedSide
from loadmaster.executor.memory.fit.setting import Setting

ROUNDS = 3
CLOSE = 1.6  # times further apart are not those of the machine


def time_in_turns(setting: Setting, planned: PlannedSide, knob: KnobSide) -> None:
    """Time the fastest step of both once more, where both keep the budget and are about as fast."""
    plan_us, own_us = planned.best_us, knob.best_us
    if plan_us is None or own_us is None or max(plan_us, own_us) > CLOSE * min(plan_us, own_us):
        return
    assert planned.chosen is not None and knob.step is not None, "they kept the budget"
    plan = planned.state.candidates[planned.chosen].step
    planned_us: list[float] = []
    knob_us: list[float] = []
    try:
        for _ in range(ROUNDS):
            planned_us += setting.times_us(plan)
            knob_us += setting.times_us(knob.step)
    except torch.OutOfMemoryError:  # one next to what the other left in the allocator's cache: their trials stand
        return
    planned.final_us, knob.final_us = statistics.median(planned_us), statistics.median(knob_us)
