"""The main strategy: symmetric event-driven list scheduling with restarts.

:func:`search` serves every collective. Chunks that are copied or moved are scheduled by
:mod:`loadmaster.planner.collective.restarts`; sums by time reversal (:mod:`loadmaster.planner.collective.combining`).
"""

from __future__ import annotations

from collections.abc import Callable

from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.plan import Send
from loadmaster.planner.collective.combining import Combining
from loadmaster.planner.collective.dispatch import dispatch
from loadmaster.planner.collective.ground import Ground
from loadmaster.planner.collective.knobs import Knobs
from loadmaster.planner.collective.prune import prune, retime
from loadmaster.planner.collective.restarts import OnBetter, Restarts


def list_schedule(instance: Instance, knobs: Knobs | None = None, seed: int = 0) -> tuple[Send, ...] | None:
    """One run on an instance without sums, pruned and retimed.

    Returns:
        None where messages of the same decision were in each other's way, or a target cannot be reached.
    """
    sends = dispatch(Ground(instance), knobs or Knobs(), seed)
    return None if sends is None else retime(instance, prune(instance, sends))


def search(
    instance: Instance,
    *,
    bound_ns: int,
    seconds: float,
    seed: int = 0,
    gap: float = 0.0,
    runs: int | None = None,
    cancelled: Callable[[], bool] | None = None,
    on_better: OnBetter | None = None,
) -> tuple[Send, ...] | None:
    """The best schedule found until one is within ``gap`` of the bound, or the time is up.

    Args:
        bound_ns: no schedule is faster; 0 where that is not known.
        gap: (time - bound) / time that is good enough.
        runs: most restarts of each phase; None: as many as the time allows. Given, the same seed gives the same
            schedule.
        cancelled: asked between events.
        on_better: called with each better schedule and its time in ns.

    Returns:
        None if there is no schedule, or none was found.
    """
    good_ns = bound_ns / (1.0 - gap)
    if instance.combines:
        combining = Combining(instance, seed, on_better, cancelled)
        return combining.search(good_ns=good_ns, gap=gap, seconds=seconds, runs=runs)
    restarts = Restarts(instance, seed, on_better=on_better)
    return restarts.search(good_ns=good_ns, seconds=seconds, runs=runs, cancelled=cancelled)
