"""Indexes in use follow their work: what is asked of them is compared with what they were planned for.

Lookups pay nothing for it: the monitor reads counters that the indexes keep a batch at a time ([Shah23], sections 6.4
and 8.3). The policy is that of renting skis: the rebuild is made once work that differs from the plan has gone on until
it would have paid for itself. Whatever the work does next, no more than about twice the time is lost that knowing it
before would have saved.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from loadmaster.errors import InputError
from loadmaster.executor.index.index import Index
from loadmaster.models.index.configuration import Configuration
from loadmaster.models.index.drift import added, drift, with_work
from loadmaster.models.index.plan import Change, IndexPlan
from loadmaster.models.index.problem import IndexProblem, Operations

logger = logging.getLogger(__name__)
# Work that differs by less is as planned: predictions are no finer.
_DRIFT = 0.1
# Fewer operations say little: their mix is off by a few percent by chance.
_LEAST_OPERATIONS = 1000


@dataclass(frozen=True)
class Checked:
    """Result of one check of the indexes.

    ``drift`` is the share of the operations since the last check that the plan did not expect, 0 to 1; ``changed``,
    what shards are to become from now on, by name; ``leaves_left``, how many later checks are still to change.
    """

    drift: float
    changed: Mapping[str, Configuration] = field(default_factory=dict)
    leaves_left: int = 0


class Monitor:
    """Follows the work on indexes that were made by a plan, and changes them when that pays.

    Call :meth:`check` from time to time, from any thread: after a thousand batches, or once a second.

    Args:
        indexes: for every shard its index, by the shard's name.
        plan: plans again: ``lambda problem: loadmaster.plan(problem, budget_bytes="2GiB")``.
        leaves: how many of each index a check changes at most; a reader waits for one at most, a writer for all.

    Raises:
        InputError: a shard has no index, or the plan is not of this problem or has no choices.
    """

    def __init__(
        self,
        problem: IndexProblem,
        planned: IndexPlan,
        indexes: Mapping[str, Index],
        plan: Callable[[IndexProblem], IndexPlan],
        *,
        leaves: int = 64,
    ) -> None:
        if planned.problem_sha256 != problem.sha256 or not planned.choices:
            remedy = "Give the problem and a plan of it that has choices."
            raise InputError("planned", planned.name, f"is no plan of {problem.name}", remedy)
        missing = [shard.name for shard in problem.shards if shard.name not in indexes]
        if missing:
            raise InputError("indexes", missing[0], "is missing", "Give the index of every shard.")
        if leaves < 1:
            raise InputError("leaves", leaves, "is less than 1", "Give how many leaves a check may change.")
        self._problem, self._plan, self._leaves = problem, plan, leaves
        self._indexes = [indexes[shard.name] for shard in problem.shards]
        self._chosen = [choice.candidate for choice in planned.choices]
        self._expected: Sequence[Operations] = [shard.operations for shard in problem.shards]
        self._judged = self._counted()
        self._seen: Sequence[Operations] | None = None
        self._plan_at = 0.0
        self._unfinished: set[int] = set()
        self._checking = threading.Lock()

    def check(self) -> Checked:
        """Compare, plan again where it may pay, and change some leaves. If ``plan`` raises, so does this; then nothing
        has changed, and the next check tries again."""
        with self._checking:
            now = self._counted()
            recent = added(now, self._judged, -1)
            found, changed = 0.0, dict[str, Configuration]()
            if _total(recent) >= _LEAST_OPERATIONS:
                found = drift(self._expected, recent)
                self._judged = now
                if self._gather(recent, found):
                    changed = self._planned_again()
            return Checked(found, changed, self._change_leaves())

    def _counted(self) -> list[Operations]:
        facts = [index.facts() for index in self._indexes]
        return [Operations(f.lookups, f.inserts, f.deletes, f.ranges) for f in facts]

    def _gather(self, recent: Sequence[Operations], found: float) -> bool:
        """Add to the work that differs from the plan; return whether there is enough of it to plan again."""
        if found <= _DRIFT:
            self._seen, self._plan_at = None, 0.0
            return False
        if self._seen is not None and drift(self._seen, recent) > _DRIFT:
            self._seen, self._plan_at = None, 0.0
        self._seen = recent if self._seen is None else added(self._seen, recent)
        return _total(self._seen) >= self._plan_at

    def _planned_again(self) -> dict[str, Configuration]:
        assert self._seen is not None, "asked when work was gathered"
        seen = self._seen
        keys = [len(index) for index in self._indexes]
        problem = with_work(self._problem, seen, keys, self._chosen)
        plan = self._plan(problem)
        if not plan.choices:
            logger.warning("The indexes stay as they are: no plan for the work that came keeps the budget.")
            self._plan_at = 2 * _total(seen)
            return {}
        changed = {}
        for change in plan.changes:
            if change.made and self._begin(change):
                changed[self._problem.shards[change.shard].name] = self._problem.candidates[change.to]
        # Not at once again, where a plan is as good as the best only within its gap.
        self._plan_at = max(_pays_at(plan.changes, seen), 1.1 * _total(seen))
        if changed or self._plan_at == float("inf"):
            self._expected, self._seen, self._plan_at = seen, None, 0.0
        return changed

    def _begin(self, change: Change) -> bool:
        """Begin a change: new leaves are made the new way from now on, a structure of one piece is made again here."""
        index, configuration = self._indexes[change.shard], self._problem.candidates[change.to]
        try:
            index.reconfigure(configuration, leaves=0)
        except (InputError, MemoryError) as error:
            name = self._problem.shards[change.shard].name
            logger.warning("%s stays as it is: %s", name, error)
            return False
        self._chosen[change.shard] = change.to
        self._unfinished.add(change.shard)
        return True

    def _change_leaves(self) -> int:
        left = 0
        for s in sorted(self._unfinished):
            index = self._indexes[s]
            try:
                here = index.reconfigure(index.configuration, leaves=self._leaves)
            except (InputError, MemoryError) as error:
                # The rest is changed when it grows or splits.
                logger.warning("%s keeps some leaves as they are: %s", self._problem.shards[s].name, error)
                here = 0
            if not here:
                self._unfinished.discard(s)
            left += here
        return left


def _total(of: Sequence[Operations]) -> float:
    return sum(one.total for one in of)


def _pays_at(changes: Sequence[Change], seen: Sequence[Operations]) -> float:
    """Number of operations of all shards after which the first change that was not made would pay; infinite: never."""
    at = float("inf")
    for change in changes:
        done = seen[change.shard].total
        if not change.made and change.pays_after_operations is not None and done:
            at = min(at, _total(seen) * change.pays_after_operations / done)
    return at
