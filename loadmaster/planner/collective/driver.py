"""Driver of collective problems: one table of algorithms, each with the bound that proves it.

Each size gets its share of the time (:mod:`one_size`: list scheduling with restarts over forms, chunk counts and
sketches, CP-SAT for what is small). Methods: ``auto``; ``greedy``: list scheduling alone; ``pipeline``: TACCL's three
steps (routing, ordering, contiguity); ``cpsat``: CP-SAT from a first schedule.

The table has the fastest algorithm of each size, and the sizes at which one overtakes the other. An algorithm is its
order of sends, kept and timed again at another size: so one planned for a size may win at the next one too.

While the search goes on, a size that has had no turn is lent the algorithm of another, timed again. So there is a whole
table as soon as one algorithm is found whose chunks all sizes divide into, as a rule at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from loadmaster.errors import CancelledError, CheckFailedError, InputError, LimitReachedError
from loadmaster.models.collective.checker import check_plan
from loadmaster.models.collective.collectives import cuts, instance_of
from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.plan import Algorithm, CollectivePlan
from loadmaster.models.collective.problem import CollectiveProblem
from loadmaster.models.collective.proof import NOTHING_YET
from loadmaster.planner.collective.baseline import expect_plannable
from loadmaster.planner.collective.one_size import OneSize
from loadmaster.planner.collective.prune import finish_ns, retime, time_at
from loadmaster.planner.effort import GOING_ON, Effort
from loadmaster.planner.options import PlanOptions, PlanProgress
from loadmaster.solvers.solution import relative_gap

# Timing an algorithm of more messages than this at every size takes longer than it is worth.
MOST_MESSAGES = 20_000


def shared(problem: CollectiveProblem, algorithms: Sequence[Algorithm]) -> tuple[Algorithm, ...]:
    """Give every size the fastest algorithm that was found for any. The bound of a size stays what it is."""
    found = []
    for algorithm in algorithms:
        best = algorithm
        for other in algorithms:
            if other is algorithm or len(other.sends) > MOST_MESSAGES:
                continue
            instance = _instance(problem, other, algorithm.size_bytes)
            if instance is None or time_at(instance, other.sends) >= best.time_ns:
                continue
            best = replace(
                at_size(problem, other, algorithm.size_bytes),
                bound_ns=algorithm.bound_ns,
                bound_by=algorithm.bound_by,
                throughput_bound_ns=algorithm.throughput_bound_ns,
            )
        found.append(best)
    return tuple(found)


def at_size(problem: CollectiveProblem, algorithm: Algorithm, size_bytes: int) -> Algorithm:
    """Return an algorithm at another size, that divides into its chunks; its bound stays that of its own size."""
    instance = instance_of(problem, size_bytes, algorithm.chunk_count, algorithm.form)
    sends = retime(instance, algorithm.sends)
    return replace(algorithm, size_bytes=size_bytes, sends=sends, time_ns=finish_ns(instance, sends))


def with_crossovers(problem: CollectiveProblem, algorithms: Sequence[Algorithm]) -> tuple[Algorithm, ...]:
    """Give each algorithm the smallest size from which it is no slower than the one before it."""
    found = [replace(algorithm, from_bytes=0) for algorithm in algorithms[:1]]
    for before, after in pairwise(algorithms):
        found.append(replace(after, from_bytes=_crossover(problem, before, after)))
    return tuple(found)


def _crossover(problem: CollectiveProblem, before: Algorithm, after: Algorithm) -> int:
    """Find where one algorithm overtakes another: bisection over the sizes that divide into the chunks of both."""
    step = math.lcm(*(cuts(problem, algorithm.chunk_count, algorithm.form) for algorithm in (before, after)))
    low, high = before.size_bytes, after.size_bytes
    if max(len(before.sends), len(after.sends)) > MOST_MESSAGES:
        return high
    while high - low > step:
        middle = low + (high - low) // (2 * step) * step
        middle += -middle % step
        if not low < middle < high:
            break
        if _time_at(problem, after, middle) <= _time_at(problem, before, middle):
            high = middle
        else:
            low = middle
    return high


def _time_at(problem: CollectiveProblem, algorithm: Algorithm, size_bytes: int) -> int:
    return time_at(instance_of(problem, size_bytes, algorithm.chunk_count, algorithm.form), algorithm.sends)


def _instance(problem: CollectiveProblem, algorithm: Algorithm, size_bytes: int) -> Instance | None:
    """Build the instance of an algorithm at another size; None where that does not divide into its chunks."""
    try:
        return instance_of(problem, size_bytes, algorithm.chunk_count, algorithm.form)
    except InputError:
        return None


class InHand:
    """Best algorithms found so far: ``found`` by size where the turn is over; ``turn`` is the search of the size whose
    turn it is."""

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
        Crossovers are not looked up: each serves from its own size on."""
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


def plan_collective(
    problem: CollectiveProblem,
    options: PlanOptions,
    *,
    on_progress: Callable[[PlanProgress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> CollectivePlan:
    """Plan one collective at all sizes of its problem.

    Raises:
        InputError: a size does not divide into the chunks asked for, the sketch does not fit, or it is too large.
        LimitReachedError, CancelledError: the limit, or a cancel, came before every size had an algorithm.
        CheckFailedError: a schedule failed its check, or a bound is above one: a bug.
    """
    expect_plannable(problem)
    effort = Effort(options, on_progress, cancelled)
    in_hand = InHand(problem)

    def told() -> None:
        if in_hand.is_whole():
            effort.hold(lambda: _plan(problem, effort, in_hand.table(), GOING_ON))

    for place, size_bytes in enumerate(problem.sizes_bytes):
        share_s = effort.left_s / (len(problem.sizes_bytes) - place)
        search = in_hand.turn = OneSize(problem, size_bytes, effort, effort.elapsed_s + share_s, told)
        algorithm = search.run()
        if search.infeasible is not None:
            cut = search.infeasible
            return replace(_empty(problem, effort), status="infeasible", stopped_by="proof", infeasibility=cut)
        if algorithm is None:
            if effort.was_cancelled:
                raise CancelledError("cancelled before a plan was found")
            raise LimitReachedError(
                f"no schedule of {size_bytes} bytes within {share_s:.3g} s. Give more time (--time-limit), fewer "
                "sizes, or a sketch with more links or fewer symmetries."
            )
        in_hand.found[size_bytes] = algorithm
    in_hand.turn = None
    table = with_crossovers(problem, shared(problem, in_hand.table()))
    proved = all(algorithm.gap <= options.gap for algorithm in table)
    with effort.on_clock("check"):
        plan = _plan(problem, effort, table, effort.stopped_by(proved=proved))
    return replace(plan, seconds=dict(effort.seconds))


def _plan(problem: CollectiveProblem, effort: Effort, table: tuple[Algorithm, ...], stopped_by: str) -> CollectivePlan:
    """Build the checked plan of a table of algorithms."""
    objective, bound = (sum(ns) / 1e3 for ns in zip(*((a.time_ns, a.bound_ns) for a in table), strict=True))
    proved = all(algorithm.gap <= effort.options.gap for algorithm in table)
    plan = replace(
        _empty(problem, effort),
        status="optimal" if proved else "feasible",
        objective=objective,
        bound=bound,
        gap=relative_gap(objective, bound),
        method="+".join(sorted({algorithm.method for algorithm in table})),
        stopped_by=stopped_by,
        algorithms=table,
    )
    verdict = check_plan(problem, plan)
    if not verdict.ok:
        raise CheckFailedError(
            f"the plan of {problem.name} fails its check: {verdict.violations[0]}. Please report it."
        )
    return replace(plan, check=verdict.summary())


def _empty(problem: CollectiveProblem, effort: Effort) -> CollectivePlan:
    return CollectivePlan(
        name=problem.name,
        problem_sha256=problem.sha256,
        status="feasible",
        objective=None,
        bound=None,
        gap=None,
        unit="us",
        method="none",
        stopped_by="method",
        seconds=dict(effort.seconds),
        solver=effort.solver_facts(),
        check={},
        algorithms=(),
        options=effort.options.to_document(),
    )
