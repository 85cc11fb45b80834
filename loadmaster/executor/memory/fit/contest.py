"""Two ways to keep one budget, plans and torch.compile's own knob: the one that promises more is tried first.

Each try is a compilation, so that nothing is tried that cannot win: a side says how long its next step takes at least,
and it is not run where another has measured less. While one side is still working out what to try, the other tries what
it would try in any case.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from loadmaster.executor.memory.fit.trial_runs import TrialRuns
from loadmaster.executor.memory.fit.trials import AnyStep

WORTH_A_TRY = 0.98  # of the best time: what cannot take less than that is no better
ROUNDS = 3
CLOSE = 1.6  # times further apart are not those of the machine


@dataclass(frozen=True)
class Offer:
    """A step that can be tried next.

    Attributes:
        at_least_us: it takes no less, as far as is known.
        expected_us: what it may take; 0: nothing is known of it.
        is_ready: whether all of it is compiled that is compiled ahead.
    """

    at_least_us: float
    expected_us: float
    run: Callable[[], None]
    is_ready: Callable[[], bool] = lambda: True


class Side(Protocol):
    """One way to keep the budget; ``final_us`` is the time of its best step, if that was timed again."""

    final_us: float | None

    def begin(self) -> None:
        """Begin to work out the next offer, while other sides try theirs."""

    def is_at_work(self) -> bool:
        """Return whether the next offer would have to be waited for."""

    def offer(self) -> Offer | None:
        """Return the step to try next; None if there is none."""

    @property
    def best_step(self) -> AnyStep | None:
        """The fastest step that kept the budget; None where none did."""

    @property
    def best_us(self) -> float | None:
        """Time of that step."""


def contest(sides: Sequence[Side]) -> Side | None:
    """Try what sides offer while it can win; returns the side with the fastest step, None where none keeps the budget.
    Of equally fast sides the first wins. Another step that was not tried may be faster by two hundredths at most."""
    while (offer := next_try(sides)) is not None:
        offer.run()
    return best_of(sides)


def next_try(sides: Sequence[Side]) -> Offer | None:
    """Return the offer that promises most of all that can win; None where none can any more."""
    best = best_of(sides)
    for side in sides:
        side.begin()
    ready = [side for side in sides if not side.is_at_work()]
    # Nothing that comes can promise more than what nothing is known of.
    offers = [o for o in _offers(ready, best) if o.expected_us <= 0.0] if len(ready) < len(sides) else []
    return min(offers or _offers(sides, best), key=lambda o: o.expected_us, default=None)


def _offers(sides: Sequence[Side], best: Side | None) -> list[Offer]:
    """Offers of the sides that can win against the best side so far."""
    offers = [offer for side in sides if (offer := side.offer()) is not None]
    if best is None or best.best_us is None:
        return offers
    return [o for o in offers if o.at_least_us < WORTH_A_TRY * best.best_us]


def best_of(sides: Sequence[Side]) -> Side | None:
    """The side whose step is the fastest that kept the budget."""
    kept = [side for side in sides if side.best_us is not None]
    return min(kept, key=lambda side: side.best_us or 0.0, default=None)


def time_in_turns(runs: TrialRuns, sides: Sequence[Side]) -> None:
    """Time the fastest steps of two sides once more, in turns, where both keep the budget and are about as fast. Trials
    are minutes apart, and a processor that others use, too, is half again as fast in one as in the next, a step of
    short kernels with it. In turns, both steps have the same of it."""
    steps = [side.best_step for side in sides if side.best_step is not None]
    times = [side.best_us for side in sides if side.best_us is not None]
    if len(steps) < 2 or max(times) > CLOSE * min(times):
        return
    found: list[list[float]] = [[] for _ in steps]
    try:
        for _ in range(ROUNDS):
            for step, times_us in zip(steps, found, strict=True):
                times_us += runs.times_us(step)
    except torch.OutOfMemoryError:  # one next to what the other left in the allocator's cache: their trials stand
        return
    for side, times_us in zip(sides, found, strict=True):
        side.final_us = statistics.median(times_us)
