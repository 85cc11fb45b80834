"""Schedules by rule: what other systems do, and what plans are compared with ([Wu24] section 3.4.3).

hector      linear operators reordered wherever that multiplies weights first, compact wherever that can be
vanilla     as written, every product for each edge
unfused     as written, compact, every value that is kept by a kernel of its own
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from loadmaster.models.graph.greedy import greedy_kept, greedy_schedule
from loadmaster.models.graph.lowering import lowered
from loadmaster.models.graph.orders import COMPACT, Order
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.rewriting import FIRST, SPREAD, WEIGHTS
from loadmaster.models.graph.schedule import Schedule


def _hector(orders: Sequence[Order]) -> Order:
    """Choose the order with most products of weights; of equals the one with fewest other changes."""

    def rank(order: Order) -> tuple[int, int]:
        forms = [form.partition(",")[0] for form in order.choices.values()]
        return (forms.count(WEIGHTS), -sum(form not in (WEIGHTS, FIRST, COMPACT) for form in forms))

    return max(orders, key=rank)


def _vanilla(orders: Sequence[Order]) -> Order:
    """Choose the order as written, with most products for each edge."""
    written = [o for o in orders if set(o.choices.values()) <= {FIRST, SPREAD, COMPACT}]
    return max(written, key=lambda order: [*order.choices.values()].count(SPREAD))


def _unfused(program: Program) -> Schedule:
    return lowered(program, greedy_kept(program), fuse=False)


METHODS: Mapping[str, tuple[Callable[[Sequence[Order]], Order], Callable[[Program], Schedule]]] = {
    "hector": (_hector, greedy_schedule),
    "vanilla": (_vanilla, greedy_schedule),
    "unfused": (lambda orders: orders[0], _unfused),
}
