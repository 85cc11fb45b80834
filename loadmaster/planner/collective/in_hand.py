"""The best table of algorithms while the search goes on.

Sizes have their turns one after the other. Until it has one of its own, a size is lent the algorithm of another: its
order of sends, timed again. So there is a whole table as soon as one algorithm is found whose chunks all sizes divide
into, as a rule at once.
"""

from __future__ import annotations

from dataclasses import replace

from loadmaster.models.collective.collectives import cuts
from loadmaster.models.collective.plan import Algorithm
from loadmaster.models.collective.problem import CollectiveProblem
from loadmaster.models.collective.proof import NOTHING_YET
from loadmaster.planner.collective.one_size import OneSize
from loadmaster.planner.collective.table import MOST_MESSAGES, at_size


class InHand:
    """Best algorithms found so far, size by size.

    Attributes:
        found: by size, the algorithms of those whose turn is over.
        turn: the search for the size whose turn it is.
    """

    def __init__(self, problem: CollectiveProblem) -> None:
        self.problem = problem
        self.found: dict[int, Algorithm] = {}
        self.turn: OneSize | None = None
        self._lender: Algorithm | None = None
        self._lent: dict[int, Algorithm] = {}

    def is_whole(self) -> bool:
        """Return whether every size has an algorithm, or can be lent the latest; asked whenever one is found."""
        known = self._known()
        latest = known[max(known)]
        missing = [size_bytes for size_bytes in self.problem.sizes_bytes if size_bytes not in known]
        cut = cuts(self.problem, latest.chunk_count, latest.form)
        if not missing or (len(latest.sends) <= MOST_MESSAGES and all(size % cut == 0 for size in missing)):
            self._lender = latest
        return self._lender is not None

    def table(self) -> tuple[Algorithm, ...]:
        """Table of the fastest algorithm of every size, none slower than in the table before. Bounds stay per size.

        Where one of them overtakes the other is not looked up: each serves from its own size on.
        """
        known = self._known()
        found = []
        for place, size_bytes in enumerate(self.problem.sizes_bytes):
            own = known.get(size_bytes)
            if own is None:
                self._lend(size_bytes)
            best = min(filter(None, (own, self._lent.get(size_bytes))), key=lambda algorithm: algorithm.time_ns)
            if own is not None and best is not own:
                proved = {name: getattr(own, name) for name in ("bound_ns", "bound_by", "throughput_bound_ns")}
                best = replace(best, **proved)
            found.append(replace(best, from_bytes=size_bytes if place else 0))
        return tuple(found)

    def _known(self) -> dict[int, Algorithm]:
        best = None if self.turn is None else self.turn.algorithm
        return self.found if best is None else {**self.found, best.size_bytes: best}

    def _lend(self, size_bytes: int) -> None:
        """Lend a size the lender's algorithm, unless it has a faster one."""
        assert self._lender is not None, "asked for a whole table"
        lent = at_size(self.problem, self._lender, size_bytes)
        known = self._lent.get(size_bytes)
        if known is None or lent.time_ns < known.time_ns:
            self._lent[size_bytes] = replace(lent, bound_ns=0, bound_by=NOTHING_YET, throughput_bound_ns=0)
