"""Fit of the cost model's constants to measured kernels.

    minimize  sum over kernels rho(log(estimate / measured))  +  sum over constants (STIFFNESS log(c / believed))^2

rho is the square of small errors and grows as the error itself beyond :data:`LARGE`: a kernel that the model gets wrong
does not spoil the rest. A constant that no kernel depends on keeps its believed value. Gauss-Newton steps on the
logarithms, damped until each goes down (Levenberg-Marquardt).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from loadmaster.errors import InputError
from loadmaster.models.graph.costs import Work
from loadmaster.models.graph.device import GraphHardware
from loadmaster.solvers.program import FloatArray

LARGE = 0.2
STIFFNESS = 0.5  # so a believed value counts as much as a quarter of a kernel
MOST_STEPS = 60
_CLOSE = 1e-6
_NUDGE = 1e-4


def fitted(
    hardware: GraphHardware, measured: Sequence[tuple[Work, float]], element_bytes: int, name: str
) -> GraphHardware:
    """Fit the constants at which the model comes closest to measured kernels, given by work and time in microseconds;
    before, ``hardware`` is believed. Raises InputError if there are no kernels, or times are not above 0."""
    times = np.array([us for _, us in measured])
    if not len(times) or times.min() <= 0:
        raise InputError("measured", len(times), "kernels with times above 0 are needed", "Measure some kernels.")
    believed = _logarithms(hardware, element_bytes)

    def errors(x: FloatArray) -> FloatArray:
        device = _with(hardware, x, element_bytes)
        estimates = np.array([work.time_us(device, element_bytes) for work, _ in measured])
        return np.concatenate([np.log(estimates / times), STIFFNESS * (x - believed)])

    x, error, damping = believed, errors(believed), 1e-3
    for _ in range(MOST_STEPS):
        slopes = np.stack([(errors(x + nudge) - error) / _NUDGE for nudge in _NUDGE * np.eye(len(x))], axis=1)
        weighed = slopes / np.sqrt(1.0 + (error / LARGE) ** 2)[:, None]
        square, down = weighed.T @ slopes, weighed.T @ error
        while damping < 1e6:
            step = np.linalg.solve(square + damping * np.eye(len(x)), -down)
            after = errors(x + step)
            if _cost(after) < _cost(error):
                break
            damping *= 4.0
        else:
            break
        x, error, damping = x + step, after, damping / 4.0
        if float(np.abs(step).max()) < _CLOSE:
            break
    return replace(_with(hardware, x, element_bytes), name=name)


def _cost(error: FloatArray) -> float:
    return float((np.sqrt(1.0 + (error / LARGE) ** 2) - 1.0).sum())


def _logarithms(hardware: GraphHardware, element_bytes: int) -> FloatArray:
    of = (
        hardware.dram_gbps,
        hardware.l2_gbps,
        hardware.matrix_rate(element_bytes),
        hardware.made_per_us,
        hardware.step_us,
        hardware.launch_us,
    )
    found: FloatArray = np.log(np.array(of))
    return found


def _with(hardware: GraphHardware, logarithms: FloatArray, element_bytes: int) -> GraphHardware:
    dram, l2, matrix, made, step, launch = np.exp(logarithms).tolist()
    rates = list(hardware.matrix_tflops)
    rates[0 if element_bytes == 2 else 1] = matrix
    return replace(
        hardware,
        dram_gbps=dram,
        l2_gbps=l2,
        matrix_tflops=(rates[0], rates[1]),
        made_per_us=made,
        step_us=step,
        launch_us=launch,
    )
