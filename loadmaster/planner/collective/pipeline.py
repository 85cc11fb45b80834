"""TACCL's pipeline: routes by a program, an order by heuristics, then contiguity and exact times by a program.

Its steps serve other searches as well: :func:`schedule` takes routes from anywhere, :func:`polish` a whole schedule.
Between steps 2 and 3 there is one of ours: the same routes in the best order that interval scheduling finds. Source:
[Shah23], sections 5.4.2 and 5.5.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from loadmaster.models.collective import intervals
from loadmaster.models.collective.bounds import lower_bound
from loadmaster.models.collective.hops import Routes
from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.plan import Send
from loadmaster.models.collective.taccl import contiguity, routing
from loadmaster.models.collective.taccl.ordering import (
    HEURISTICS,
    Message,
    Ordered,
    alone,
    order,
    order_of,
    sends,
    time_ns,
)
from loadmaster.planner.collective.prune import finish_ns
from loadmaster.planner.collective.reversal import (
    choose_roots,
    gathering,
    joined,
    phase_by_phase,
    reversed_summing,
    summing,
)
from loadmaster.planner.collective.solves import LEAST_SECONDS, solved
from loadmaster.planner.effort import Effort

# Of the time, for routes: they are there within seconds, and the proof of their optimum proves nothing of a schedule.
ROUTING_SHARE = 0.4
# Of the time left, for the order by interval scheduling: it is optimal within a second or not worth more.
INTERVALS_SHARE = 0.25


def pipeline(instance: Instance, effort: Effort, seconds: float) -> tuple[Send, ...] | None:
    """Plan by all three steps; None where no routes were found in time. Sums are routed backwards, from their roots;
    the copies that follow are a collective of its own, started as early as the orders of the resources allow (section
    5.7)."""
    if not instance.combines:
        return _phase(instance, instance, effort, seconds)
    instance, roots = choose_roots(instance)
    after = gathering(instance, roots)
    follows = any(set(chunk.targets) - set(chunk.sources) for chunk in after.chunks)
    until_s = effort.elapsed_s + seconds
    sums = _phase(
        summing(instance, roots), reversed_summing(instance, roots), effort, seconds / 2 if follows else seconds
    )
    if sums is None or not follows:
        return sums
    copies = _phase(after, after, effort, until_s - effort.elapsed_s)
    if copies is None:
        return None
    return joined(instance, sums, copies)


def _phase(instance: Instance, routed: Instance, effort: Effort, seconds: float) -> tuple[Send, ...] | None:
    """Run the three steps on an instance with the routes of ``routed``, which has the same links, maybe reversed."""
    until_s = effort.elapsed_s + seconds
    with effort.on_clock("build"):
        bound_ns = lower_bound(instance).ns
        formulation = routing.formulate(routed)
    solution = solved(formulation.program, effort, ROUTING_SHARE * seconds, phase="routing", best_ns=None, bound_ns=0)
    if solution.values is None:
        return None
    routes = formulation.routes(solution.values)
    return schedule(instance, routes, bound_ns, until_s - effort.elapsed_s, effort)


def schedule(instance: Instance, routes: Routes, bound_ns: int, seconds: float, effort: Effort) -> tuple[Send, ...]:
    """Steps 2 and 3: order the hops of routes by every heuristic, and merge them in the best orders, up to the asked
    gap to ``bound_ns``. Raises InputError if a route is not a tree, see
    :func:`loadmaster.models.collective.hops.hops_of`."""
    with effort.on_clock("build"):
        orders = [order(instance, routes, rule, backward=b) for rule, b in product(HEURISTICS, (False, True))]
        orders.sort(key=lambda ordered: time_ns(ordered, alone(ordered)))
    search = _Search(instance, bound_ns, effort.elapsed_s + seconds, effort, sends(orders[0], alone(orders[0])))
    for ordered in search.with_intervals(routes, orders):
        search.merge(ordered)
        if search.done():
            break
    return search.best


def polish(
    instance: Instance, schedule_in_hand: Sequence[Send], bound_ns: int, seconds: float, effort: Effort
) -> tuple[Send, ...]:
    """Merge the messages of a schedule in hand again (step 3 on its order), as in :func:`schedule`. Never slower than
    it."""
    found = tuple(schedule_in_hand)
    if any(chunk.goes_on for chunk in instance.chunks):
        return phase_by_phase(instance, found, polish, seconds, effort)
    search = _Search(instance, bound_ns, effort.elapsed_s + seconds, effort, found)
    if not search.done():
        ordered, messages = order_of(instance, found)
        search.merge(ordered, messages)
    return search.best


@dataclass
class _Search:
    """Steps 2 and 3 on one instance, until ``until_s`` on the clock of the effort."""

    instance: Instance
    bound_ns: int
    until_s: float
    effort: Effort
    best: tuple[Send, ...]

    @property
    def best_ns(self) -> int:
        return finish_ns(self.instance, self.best)

    @property
    def left_s(self) -> float:
        return min(self.until_s - self.effort.elapsed_s, self.effort.left_s)

    def done(self) -> bool:
        good = self.best_ns <= self.bound_ns * (1.0 + self.effort.options.gap)
        return good or self.left_s < LEAST_SECONDS or self.effort.over()

    def with_intervals(self, routes: Routes, orders: Sequence[Ordered]) -> Iterator[Ordered]:
        """Yield the best heuristic order, the one that interval scheduling finds, then the other heuristic orders."""
        yield orders[0]
        with self.effort.on_clock("build"):
            horizon_ns = time_ns(orders[0], alone(orders[0]))
            formulation = intervals.formulate(
                self.instance, routes=routes, horizon_ns=horizon_ns, bound_ns=self.bound_ns
            )
        solution = solved(
            formulation.program,
            self.effort,
            INTERVALS_SHARE * self.left_s,
            phase="order by intervals",
            best_ns=self.best_ns,
            bound_ns=self.bound_ns,
            start=formulation.start_from(sends(orders[0], alone(orders[0]))),
        )
        if solution.values is not None:
            yield order_of(self.instance, formulation.schedule(solution))[0]
        seen = [orders[0].resource_order]
        for ordered in orders[1:]:
            if ordered.resource_order not in seen:
                seen.append(ordered.resource_order)
                yield ordered

    def merge(self, ordered: Ordered, messages: Sequence[Message] | None = None) -> None:
        """Step 3 on one order, from these messages; takes the schedule if it is faster."""
        with self.effort.on_clock("build"):
            messages = alone(ordered) if messages is None else messages
            start_ns = time_ns(ordered, messages)
            self._offer(sends(ordered, messages))
            limit = max([contiguity.LIMIT, *(len(message) for message in messages)])
            formulation = contiguity.formulate(ordered, limit=limit, horizon_ns=min(start_ns, self.best_ns))
        if not formulation.variables.together.size or self.done():
            return
        solution = solved(
            formulation.program,
            self.effort,
            self.left_s,
            phase="contiguity",
            best_ns=self.best_ns,
            bound_ns=self.bound_ns,
            start=formulation.start(messages) if start_ns <= self.best_ns else None,
        )
        if solution.values is not None:
            self._offer(formulation.schedule(solution))

    def _offer(self, found: tuple[Send, ...]) -> None:
        if finish_ns(self.instance, found) < self.best_ns:
            self.best = found
