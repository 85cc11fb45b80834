"""The fastest step in the mode that the user asked for: CUDA graphs are made of the winner alone.

Trials run without them, and count what kernels take. What a CUDA graph holds is allocated when it is recorded, and
stays as long as its step: one trial's memory would count as the next one's.
"""

from __future__ import annotations

import logging

from loadmaster.executor.memory.fit.any_step import AnyStep
from loadmaster.executor.memory.fit.phases import KNOB, PLANS
from loadmaster.executor.memory.fit.setting import Setting
from loadmaster.executor.memory.run.knob_step import KnobStep
from loadmaster.models.units import show_bytes, show_cost

logger = logging.getLogger(__name__)


def in_mode(setting: Setting, step: AnyStep, budget_bytes: int) -> tuple[AnyStep, str]:
    """The step in this mode, or as it is where the mode does not keep the budget; and what it measured, in words."""
    mode = setting.mode
    if mode == "default":
        return step, ""
    again: AnyStep
    if isinstance(step, KnobStep):
        again, side = KnobStep(setting.model, setting.loss, knob=step.knob, mode=mode), KNOB
    else:
        again, side = setting.planned(step.plans, mode), PLANS
    try:
        measured = setting.run(again, budget_bytes, side, f"mode {mode}")
    except Exception as error:  # noqa: BLE001 - of a driver, or of what was recorded
        logger.warning("mode %s is left: %s: %s", mode, type(error).__name__, error)
        return step, f"In mode {mode} it could not be run, and runs without."
    used_bytes = setting.used_bytes(measured)
    if used_bytes > budget_bytes:
        return step, f"In mode {mode} it took {show_bytes(used_bytes)}, and runs without."
    if (differs := setting.compared(again).differs) is not None:
        return step, f"In mode {mode} {differs}, and it runs without."
    of = "These times are of kernels alone. " if setting.counts_kernels else ""
    at = f"{show_bytes(used_bytes)}, {show_bytes(measured.reserved_bytes)} reserved"
    return again, f"{of}In mode {mode} it measured {show_cost(measured.step_us, 'us')} at {at}."
