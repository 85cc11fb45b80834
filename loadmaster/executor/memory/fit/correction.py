"""Problems as planners get them: corrected by what trials taught of times, and of what else is held in memory.

Before anything is measured, room is left for PyTorch's caching allocator. It rounds requests up to 512 bytes, which
sizes of captured tensors include. For requests above 1 MiB it splits blocks only where more than 1 MiB would be left
over, so that a block can be up to 1 MiB larger than asked; ``max_memory_allocated`` counts the whole block. Smaller
requests, and all requests under ``expandable_segments``, get blocks split to their size. Source: ``should_split`` in
PyTorch's c10/cuda/CUDACachingAllocator.cpp.

Which block a request finds depends on all requests before it. Left-overs between 0 and 1 MiB are equally likely, so
half a mebibyte is set aside for every large result that can be on the device at once: a first guess that spares a
trial, in whose place comes what a trial measures.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import torch

from loadmaster.executor.costs.model import Corrected
from loadmaster.executor.memory.capture import CapturedStep
from loadmaster.executor.memory.fit.contest import WORTH_A_TRY
from loadmaster.executor.memory.fit.trials import Correction, Trial
from loadmaster.models.memory.checker import MemoryCheck, check
from loadmaster.models.memory.plan import MemoryPlan, Schedule
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.models.memory.variants import least_resident_bytes, with_resident

LARGE_BYTES = 1 << 20
IDLE_SHARE = 0.02  # of the budget: less than this left of a planned peak is not worth another plan
_UNLIMITED_BYTES = 1 << 62
# Of a step; the gaps between kernels that are launched in time take a few percent.
_IDLE_DEVICE_SHARE = 0.15


class StepProblems:
    """The problems of one captured step. ``learned`` is of the latest trials: the factors, and the bytes held on top of
    the captured ones, reserves left out."""

    def __init__(self, captured: CapturedStep, learned: Correction) -> None:
        self.captured = captured
        self.learned = learned
        self._problems: dict[tuple[float, float], MemoryProblem] = {}

    @property
    def plain(self) -> MemoryProblem:
        """The problem as captured, without corrections."""
        return self._costed(1.0, 1.0)

    @property
    def least_bytes(self) -> int:
        """The least that a correction of resident bytes can be."""
        return -least_resident_bytes(self.plain)

    def problem(self, correction: Correction) -> MemoryProblem:
        """The captured problem, with corrected times and resident bytes."""
        return with_resident(self._costed(correction.products, correction.moves), correction.resident_bytes)

    def shares_us(self, schedule: Schedule) -> list[float]:
        """Time of library kernels and of all others under a schedule, at captured costs: waits and cuts left out."""
        sorts = [Corrected(self.captured.costs, products=1.0, moves=0.0), Corrected(self.captured.costs, 0.0, 1.0)]
        replays = [check(self.captured.problem(c), schedule, _UNLIMITED_BYTES) for c in sorts]
        return [r.forward_us + r.recompute_us + r.backward_us for r in replays]

    def _costed(self, products: float, moves: float) -> MemoryProblem:
        """The problem with corrected times: made once, for it takes a second on large models."""
        if (products, moves) not in self._problems:
            corrected = Corrected(self.captured.costs, products, moves)
            self._problems[products, moves] = self.captured.problem(corrected)
        return self._problems[products, moves]


def fallback(correction: Correction, plan: MemoryPlan, made: Sequence[Trial], reserve_bytes: int) -> Correction | None:
    """The next correction to plan under, with less resident; None if there is nothing left to try.

    ``correction`` and the infeasible ``plan`` are the last ones. Before any trial, what was set aside for the allocator
    is an estimate: go without it, but for the user's ``reserve_bytes``. After a trial, what one plan measured too much
    need not be what another one does: the tightest plan there may be is tried, if it is tighter than the last one.
    Once: a proof that speaks of a byte more could be followed for ever.
    """
    if made:
        last = made[-1]
        if plan.infeasibility is None or correction.resident_bytes < last.beside_bytes:
            return None
        resident = correction.resident_bytes - plan.infeasibility.short_bytes
        return replace(correction, resident_bytes=resident) if resident > last.correction.resident_bytes else None
    return replace(correction, resident_bytes=reserve_bytes) if reserve_bytes < correction.resident_bytes else None


def factors(busy_us: float, measured_us: Sequence[float], planned_us: Sequence[float]) -> tuple[float, float]:
    """Factors of the times of library kernels and of all others.

    Args:
        busy_us: what both took together in a step that nobody profiled.
        measured_us: library kernels and all others in a profiled step: their shares count.
        planned_us: the same two sums as planned without factors.
    """
    total = sum(measured_us)
    pairs = zip(measured_us, planned_us, strict=True)
    products, moves = (busy_us * m / total / p if m > 0 and p > 0 and busy_us > 0 else 1.0 for m, p in pairs)
    return products, moves


def launches_bind(step_us: float, kernels_us: float) -> str | None:
    """Warning about a step, waits for copies left out, that takes much longer than its kernels; None for any other."""
    idle_us = step_us - kernels_us
    if idle_us <= _IDLE_DEVICE_SHARE * step_us:
        return None
    return (
        f"the device is idle for {idle_us / 1e3:.1f} of {step_us / 1e3:.1f} ms: the processor takes longer to launch "
        'this step\'s kernels than they run. A larger batch or mode="reduce-overhead" hides that.'
    )


def may_gain(problem: MemoryProblem, verdict: MemoryCheck, before: Correction, after: Correction) -> bool:
    """Return whether corrected times may make another plan faster by what is worth a compilation. Every plan computes
    the step once; they differ in what they spend in addition, and are ranked differently as far as one sort of kernels
    was off by more than the other. Copies overlap with all of it."""
    products, moves = after.products / before.products, after.moves / before.moves
    if problem.may_offload:
        return (products, moves) != (1.0, 1.0)
    spent_us = verdict.recompute_us + verdict.stall_us + verdict.cut_us
    return spent_us * (1.0 - min(products, moves) / max(products, moves)) > (1.0 - WORTH_A_TRY) * verdict.time_us


def is_idle(latest: Trial, verdict: MemoryCheck) -> bool:
    """Return whether the step spends time to save memory, and then leaves a good part of its planned peak unused."""
    spends = verdict.recompute_us + verdict.stall_us + verdict.cut_us > 0
    return latest.kept and spends and -latest.excess_bytes > IDLE_SHARE * latest.budget_bytes


def allocator_reserve_bytes(problem: MemoryProblem, budget_bytes: int) -> int:
    """Half a mebibyte for each of the large forward results that fit the budget together, smallest first."""
    room = budget_bytes - min(f.fixed_bytes for f in problem.forward)
    count = 0
    for size in sorted(f.output_bytes for f in problem.forward if f.output_bytes > LARGE_BYTES):
        room -= size
        if room < 0:
            break
        count += 1
    return count * LARGE_BYTES // 2


def has_left_overs(device: torch.device) -> bool:
    """Return whether the allocator hands out larger blocks than asked: PyTorch's on CUDA, unless segments expand."""
    if device.type != "cuda" or torch.cuda.get_allocator_backend() != "native":
        return False
    settings = (os.environ.get(name, "") for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"))
    return not any("expandable_segments:True" in s.replace(" ", "") for s in settings)
