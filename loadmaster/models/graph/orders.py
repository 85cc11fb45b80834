"""Orders of a program: equal programs with its linear operators in another order, or for other rows.

First the program is made canonical: dot products of concatenated vectors are split, and values that depend on nodes
alone are computed for nodes. Then come all combinations of the forms of its sites (:mod:`.rewriting`), products by
parts before the others, and for each the choice between a row for every pair of node and relation (compact) and one
for every edge (vanilla), [Wu24] sections 3.3.2 and 3.4.3.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from loadmaster.errors import InputError
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.rewriting import FIRST, PARTS, SPREAD, divisible, rewritten, sites, spreadable

MOST_ORDERS = 64
COMPACT = "compact"


@dataclass(frozen=True)
class Order:
    """Program with the form of each of its sites, by the name of its value: ``weights first, compact``."""

    choices: Mapping[str, str]
    program: Program


def orders(program: Program, most: int = MOST_ORDERS) -> list[Order]:
    """List at most so many orders, each once: the first is compact and else as written; those for edges come last.
    Raises InputError for a program with a backward pass; each order needs its own."""
    if program.forward_count != len(program.values):
        raise InputError("program", "given", "has a backward pass", "Give the forward pass; add the other to an order.")
    whole = rewritten(program, {})
    found: dict[object, Order] = {}
    compact = [*itertools.islice(_compact(whole), most)]
    spread = itertools.chain.from_iterable(_for_edges(order) for order in compact)
    for order in itertools.chain(compact, spread):
        found.setdefault(_content(order.program), order)
        if len(found) == most:
            break
    return [*found.values()]


def _compact(whole: Program) -> Iterator[Order]:
    divided = [*divisible(whole)]
    for by_parts in itertools.product((FIRST, PARTS), repeat=len(divided)):
        program = rewritten(whole, dict(zip(divided, by_parts, strict=True)))
        names = {whole.values[n].name: form for n, form in zip(divided, by_parts, strict=True)}
        of = [*sites(program)]
        for forms in itertools.product(*((FIRST, *more) for _, more in of)):
            order = _order(program, {n: form for (n, _), form in zip(of, forms, strict=True)})
            yield Order({**names, **order.choices}, order.program)


def _order(program: Program, forms: Mapping[int, str]) -> Order:
    made = rewritten(program, forms)
    left = {value.name for value in made.values}
    named = {
        program.values[n].name: form
        for n, form in forms.items()
        # A site that others have made superfluous is not a choice.
        if form != FIRST or program.values[n].name in left
    }
    for n in spreadable(made):
        name = made.values[n].name
        form = named.get(name, FIRST)
        named[name] = COMPACT if form == FIRST else f"{form}, {COMPACT}"
    return Order(named, made)


def _for_edges(order: Order) -> Iterator[Order]:
    """Iterate over an order's variants with some compact products for each edge; the one with all comes first."""
    compact = [*spreadable(order.program)]
    subsets = [s for count in range(len(compact), 0, -1) for s in itertools.combinations(compact, count)]
    for some in subsets:
        made = rewritten(order.program, dict.fromkeys(some, SPREAD))
        names = [order.program.values[n].name for n in some]
        yield Order({**order.choices, **{n: order.choices[n].replace(COMPACT, SPREAD) for n in names}}, made)


def _content(program: Program) -> object:
    return tuple(replace(value, name="") for value in program.values), program.outputs
