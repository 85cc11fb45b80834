"""The main strategy: symmetric event-driven list scheduling with restarts.

:class:`Searcher` serves every collective. Chunks that are copied or moved are scheduled by
:mod:`loadmaster.planner.collective.restarts`; sums by time reversal (:mod:`loadmaster.planner.collective.combining`).
"""

from __future__ import annotations

from collections.abc import Callable

from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.plan import Send
from loadmaster.planner.collective.combining import Combining, good_enough_ns
from loadmaster.planner.collective.restarts import OnBetter, Restarts


class Searcher:
    """Search for schedules of one instance; each call of :meth:`search` goes on where the last one stopped.

    Args:
        seed: the same seed and the same ``runs`` of each call give the same schedules.
        cancelled: asked between events.
        on_better: called with each better schedule and its time in ns.
        needed: there must be a schedule in the end: the plainest where list scheduling found none in time.
    """

    def __init__(
        self,
        instance: Instance,
        seed: int = 0,
        *,
        needed: bool = True,
        cancelled: Callable[[], bool] | None = None,
        on_better: OnBetter | None = None,
    ) -> None:
        kind = Combining if instance.combines else Restarts
        self._search: Combining | Restarts = kind(
            instance, seed, cancelled=cancelled, on_better=on_better, needed=needed
        )

    @property
    def best(self) -> tuple[Send, ...] | None:
        """The best schedule so far; None if none was found."""
        return self._search.best

    @property
    def best_ns(self) -> int | None:
        """Time of the best schedule in ns."""
        return self._search.best_ns

    def search(
        self, *, bound_ns: int, seconds: float, gap: float = 0.0, runs: int | None = None
    ) -> tuple[Send, ...] | None:
        """Search until a schedule is within ``gap`` of the bound, or the time is up.

        Args:
            bound_ns: no schedule is faster; 0 where that is not known.
            gap: (time - bound) / time that is good enough.
            runs: most restarts of each phase in this call; None: as many as the time allows.

        Returns:
            The best of all calls; None if there is no schedule, or none was found.
        """
        good_ns = good_enough_ns(bound_ns, gap)
        if isinstance(self._search, Combining):
            return self._search.search(good_ns=good_ns, gap=gap, seconds=seconds, runs=runs)
        return self._search.search(good_ns=good_ns, seconds=seconds, runs=runs)
