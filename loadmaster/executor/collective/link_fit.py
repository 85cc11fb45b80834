"""Latency, occupancy per message and bandwidth of a link, from timed transfers.

n messages of s bytes one after another take L + n (g + beta s); the same bytes as one message take L + g + n beta s.
Both are linear in (L, g, beta): least squares of relative errors over several n and s, with none of them negative.

Source: [Shah23], section 5.3 (link profiling), with TACCL's alpha split into L and g.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from loadmaster.errors import InputError


@dataclass(frozen=True)
class Sample:
    """One timed transfer.

    Attributes:
        size_bytes: of each of ``count`` messages.
        merged: they went as one.
        seconds: from the first byte's departure to the last one's arrival.
    """

    size_bytes: int
    count: int
    merged: bool
    seconds: float


@dataclass(frozen=True)
class LinkCost:
    """Costs of a link that were fitted, as :class:`loadmaster.models.topologies.topology.Link` takes them.

    Attributes:
        error: median of the relative differences between the fit and its samples.
    """

    latency_ns: int
    message_ns: int
    gbps: float
    error: float

    def seconds(self, sample: Sample) -> float:
        """Time that a transfer takes by the fit."""
        messages = 1 if sample.merged else sample.count
        total_bytes = sample.count * sample.size_bytes
        return (self.latency_ns + messages * self.message_ns + total_bytes / self.gbps) / 1e9


def fit(samples: Sequence[Sample]) -> LinkCost:
    """Fit the costs of a link to timed transfers.

    Raises:
        InputError: fewer than three samples, a time that is not above 0, or sizes that do not tell a bandwidth.
    """
    if len(samples) < 3:
        raise InputError("samples", len(samples), "are too few to fit three costs", "Time more sizes and counts.")
    for sample in samples:
        if not sample.seconds > 0:
            raise InputError("samples", sample.seconds, "is no time", "Give seconds, more than 0.")
    by_bytes = [s.seconds for s in sorted(samples, key=lambda s: s.size_bytes * s.count)]
    half = len(by_bytes) // 2
    few, many = float(np.median(by_bytes[:half])), float(np.median(by_bytes[half:]))
    if many <= few:
        problem = f"is no more for the larger half of the samples than for the smaller ({few})"
        raise InputError("samples", many, problem, "Time larger messages.")
    measured_ns = np.array([sample.seconds * 1e9 for sample in samples])
    rows = np.array([[1.0, 1.0 if s.merged else s.count, s.count * s.size_bytes] for s in samples])
    weighted = rows / measured_ns[:, None]
    # With three costs, trying which of the first two are zero finds the non-negative least squares exactly.
    best, least = None, np.inf
    for used in product((True, False), repeat=2):
        columns = [index for index, use in enumerate((*used, True)) if use]
        found, *_ = np.linalg.lstsq(weighted[:, columns], np.ones(len(samples)), rcond=None)
        if (found < 0).any() or found[-1] <= 0:
            continue
        missed = float(((weighted[:, columns] @ found - 1) ** 2).sum())
        if missed < least * (1 - 1e-9):
            least, best = missed, dict(zip(columns, found, strict=True))
    if best is None:
        raise InputError("samples", len(samples), "tell no bandwidth", "Time larger messages, and more of them.")
    costs = np.array([best.get(index, 0.0) for index in range(3)])
    error = float(np.median(np.abs(weighted @ costs - 1)))
    return LinkCost(round(costs[0]), round(costs[1]), float(f"{1 / costs[2]:.6g}"), error)
