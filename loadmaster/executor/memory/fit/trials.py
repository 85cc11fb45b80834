"""Trials of planned steps: one record each, how far off the plans were, and the words for a broken promise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from loadmaster.errors import BudgetError
from loadmaster.executor.steps.measure import Measurement
from loadmaster.models.fit_record import TryRecord
from loadmaster.models.memory.plan import MemoryPlan

_MIB = 1 << 20
# Of a step; the gaps between kernels that are launched in time take a few percent.
_IDLE_DEVICE_SHARE = 0.15


@dataclass(frozen=True)
class Correction:
    """Correction of a captured problem by what trials have taught.

    Attributes:
        resident_bytes: held in addition to what was captured, through the whole step; negative where less is held.
        products, moves: factors of the times of library kernels, and of all others.
    """

    resident_bytes: int = 0
    products: float = 1.0
    moves: float = 1.0

    def plus(self, resident_bytes: int) -> Correction:
        """The correction with so many more resident bytes."""
        return replace(self, resident_bytes=self.resident_bytes + resident_bytes)


@dataclass(frozen=True)
class Trial:
    """One plan and what running it measured.

    Attributes:
        budget_bytes: the user's.
        correction: of the problem that was planned.
        planned_peak_bytes, planned_us: as the checker replays the plan.
        used_bytes: what counts against the budget: the measured peak with the fragmentation reserve, or what the
            allocator reserved.
        measured: the trial.
    """

    budget_bytes: int
    correction: Correction
    planned_peak_bytes: int
    planned_us: float
    used_bytes: int
    measured: Measurement

    @property
    def kept(self) -> bool:
        """True if the step stayed within the budget."""
        return self.used_bytes <= self.budget_bytes

    @property
    def excess_bytes(self) -> int:
        """Measured bytes less the planned peak; negative below it."""
        return self.used_bytes - self.planned_peak_bytes

    @property
    def beside_bytes(self) -> int:
        """Bytes held in addition to what was captured, as measured; a reserve counts as held."""
        return self.correction.resident_bytes + self.excess_bytes

    @property
    def time_error(self) -> float:
        """Measured over planned step time, less one; 0 where no step was over."""
        known = self.planned_us and not self.measured.ran_out
        return self.measured.step_us / self.planned_us - 1.0 if known else 0.0

    @property
    def peak_error(self) -> float:
        """Measured bytes over the planned peak, less one."""
        return self.excess_bytes / self.planned_peak_bytes


def recorded(tried: Trial) -> TryRecord:
    """Record of a trial, as it is written to a file."""
    return TryRecord(
        budget_bytes=tried.budget_bytes,
        planned_peak_bytes=tried.planned_peak_bytes,
        planned_us=tried.planned_us,
        used_bytes=tried.used_bytes,
        peak_bytes=tried.measured.peak_bytes,
        step_us=tried.measured.step_us,
        kept=tried.kept,
        corrected_bytes=tried.correction.resident_bytes,
        ran_out=tried.measured.ran_out,
    )


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
    """Warning about a step that takes much longer than its kernels; None for any other.

    Args:
        step_us: without waits for copies.
        kernels_us: of all kernels together.
    """
    idle_us = step_us - kernels_us
    if idle_us <= _IDLE_DEVICE_SHARE * step_us:
        return None
    return (
        f"the device is idle for {idle_us / 1e3:.1f} of {step_us / 1e3:.1f} ms: the processor takes longer to launch "
        'this step\'s kernels than they run. A larger batch or mode="reduce-overhead" hides that.'
    )


def describe(tried: Trial) -> str:
    """One line: budget, planned and measured peak, planned and measured time."""
    if tried.measured.ran_out:
        planned = f"peak planned {_size(tried.planned_peak_bytes)}"
        return f"budget {_size(tried.budget_bytes)}: {planned}, and the device ran out of memory"
    peak = f"peak planned {_size(tried.planned_peak_bytes)}, measured {_size(tried.used_bytes)}"
    time = f"step planned {tried.planned_us / 1e3:.2f} ms, measured {tried.measured.step_us / 1e3:.2f} ms"
    held = "kept" if tried.kept else f"exceeded by {_size(tried.used_bytes - tried.budget_bytes)}"
    return f"budget {_size(tried.budget_bytes)} {held}: {peak}; {time} ({tried.time_error:+.1%})"


def infeasible(plan: MemoryPlan, extra_bytes: int, tries: Sequence[Trial]) -> BudgetError:
    """Error that says that no plan exists for the problem as corrected.

    Args:
        extra_bytes: resident in it in addition to what was captured: reserves, and what trials measured too much.
    """
    found = plan.infeasibility
    needed = plan.budget_bytes + 1 if found is None else found.minimum_budget_bytes
    why = "" if found is None else f" at {found.where}"
    beside = f", of which {_size(extra_bytes)} are kept for what no plan knows" if extra_bytes else ""
    measured = min((t.used_bytes for t in tries if not t.measured.ran_out), default=None)
    ran = "" if measured is None else f" The best of the plans that were run measured {_size(measured)}."
    message = (
        f"budget_bytes: no plan fits {_size(plan.budget_bytes)}: a step needs at least {_size(needed)}{why}{beside}."
        f"{ran} Ask for at least {needed} bytes."
    )
    return BudgetError(message, plan.budget_bytes, needed, measured)


def broken(tries: Sequence[Trial]) -> BudgetError:
    """Error that says that every plan that was run measured more than the budget."""
    best = min(tries, key=lambda t: (t.measured.ran_out, t.used_bytes))
    found = best.measured
    if found.ran_out:
        message = (
            f"budget_bytes: no plan of {len(tries)} kept {_size(best.budget_bytes)}: the device ran out of memory "
            f"where {_size(best.planned_peak_bytes)} were planned. Give a smaller budget, or free what others hold."
        )
        return BudgetError(message, best.budget_bytes, best.used_bytes)
    rounding = found.peak_bytes - found.requested_bytes
    beside = best.used_bytes - found.peak_bytes
    unknown = best.excess_bytes - rounding - beside
    message = (
        f"budget_bytes: no plan of {len(tries)} kept {_size(best.budget_bytes)}: the best measured "
        f"{_size(best.used_bytes)} where {_size(best.planned_peak_bytes)} were planned. Of the difference, workspaces "
        f"and temporaries that no plan knows took {_size(unknown)}, the allocator's rounding {_size(rounding)}, and "
        f"fragmentation {_size(beside)}. Ask for at least {best.used_bytes} bytes, or allow more tries."
    )
    return BudgetError(message, best.budget_bytes, best.used_bytes, best.used_bytes)


def _size(size_bytes: int) -> str:
    return f"{size_bytes / _MIB:,.1f} MiB"
