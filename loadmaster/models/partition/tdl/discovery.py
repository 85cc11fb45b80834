"""The strategies of an operator, found from its description ([Wang20] section 3.4.2).

A worker of k that runs its share v in [w V/k, (w+1) V/k) of an index reads, in a dimension that is indexed by

    a v + sum_j b_j u_j + c        with u_j in [0, U_j)

the elements from a w V/k + c to a ((w+1) V/k - 1) + sum_j b_j (U_j - 1) + c, b_j >= 0. That is its share of the
dimension where the dimension has a V elements, and a halo of

    before = -c          after = sum_j b_j (U_j - 1) + c - (a - 1)

(0 where that is less). This is the interval <l, u, c> of equation 3.1, kept as what it is needed for. Case 1 splits
an index of the result; case 2 splits one that is summed over, and gives terms of a sum. Of several results, each has
its own case; one that does not depend on the index comes whole. In addition, an operator that is linear in some of
its inputs makes terms of terms.

Where that is not so (two dimensions of one tensor by one index, a negative coefficient, an extent that is not a V), the
index is not split.

Example: ``B[i] = A[i + 2]``, split over i. a = 1, c = 2: share w of A, none before, 2 after. Whether A has as many
elements as B is not written there: ``extents`` says so, or the index is not split.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from loadmaster.models.partition.problem import Need, Strategy
from loadmaster.models.partition.tdl.language import (
    Added,
    Called,
    Description,
    Element,
    Expression,
    Index,
    Multiplied,
    Number,
    OpaqueElement,
    Reduced,
    Result,
)

# All subsets of the inputs are tried for linearity up to so many.
_MOST_INPUTS = 5


@dataclass(frozen=True)
class Extents:
    """Facts that a description leaves open.

    Attributes:
        windows: indices of few values, such as of a convolution's kernel, and how many. They are not split.
        whole: other indices that are not split: a kernel does with a share of them what it should do with all.
        scaled: (input, dimension) that has exactly as many elements as its split index says, a V, though more than one
            index is added up there.
        told: indices whose extent the kernel is told, so that it can do a share of what no input is read by.
    """

    windows: Mapping[str, int] = field(default_factory=dict)
    whole: frozenset[str] = frozenset()
    scaled: frozenset[tuple[int, int]] = frozenset()
    told: frozenset[str] = frozenset()


def strategies(description: Description, extents: Extents | None = None) -> tuple[Strategy, ...]:
    """All strategies of an operator on one axis, but for that which does all of it everywhere."""
    known = extents or Extents()
    return (*_over_indices(description, known), *_of_terms(description))


def _over_indices(description: Description, extents: Extents) -> Iterator[Strategy]:
    """Cases 1 and 2: an index that every result has, is a sum over, or does not depend on."""
    results = description.results
    sums = [_summed_over(result.element) for result in results]
    names = dict.fromkeys([*(i for result in results for i in result.indices), *(i for over in sums for i in over)])
    for name in names:
        if name in extents.whole or (name in extents.windows and any(name in over for over in sums)):
            continue
        outputs = [_part_over(result, over, name) for result, over in zip(results, sums, strict=True)]
        needs = _needs(description, name, extents)
        if needs is None or None in outputs:
            continue
        if name not in extents.told and all(need.part == "R" for need in needs):
            continue  # nothing tells the kernel to do less
        yield Strategy(name, needs, tuple(part for part in outputs if part is not None))


def _part_over(result: Result, summed: Sequence[str], name: str) -> str | None:
    """Part of a result that a share of an index makes; None where it makes none."""
    if name in result.indices:
        return None if _hidden_in_opaque(result.element, name) else f"S{result.indices.index(name)}"
    if name in summed:
        return "P"
    return None if any(_reads_by(element, name) for element in elements(result.element)) else "R"


def _reads_by(element: Element, name: str) -> bool:
    return any(index is not None and bool(index.terms.get(name)) for index in element.at)


def _of_terms(description: Description) -> Iterator[Strategy]:
    """Inputs that are terms of sums, where all results are linear in them together."""
    count = len(description.inputs)
    if count > _MOST_INPUTS:
        return
    for size in range(1, count + 1):
        for chosen in itertools.combinations(range(count), size):
            if all(_degree(result.element, chosen) == 1 for result in description.results):
                needs = tuple(Need("P" if n in chosen else "R") for n in range(count))
                name = "terms of " + ", ".join(description.inputs[n] for n in chosen)
                yield Strategy(name, needs, ("P",) * len(description.results), divides=False)


def elements(expression: Expression) -> Iterator[Element]:
    """Yield every element that is read."""
    match expression:
        case Element():
            yield expression
        case Added(a, b) | Multiplied(a, b):
            yield from elements(a)
            yield from elements(b)
        case Called(_, arguments):
            for one in arguments:
                yield from elements(one)
        case Reduced(_, _, body):
            yield from elements(body)
        case OpaqueElement(_, reads, _):
            yield from reads


def _needs(description: Description, name: str, extents: Extents) -> tuple[Need, ...] | None:
    """Needs of a share of an index, for each input; None where the index cannot be split. An input that is read by the
    index is cut along it: a kernel counts from the start of what it is given, so all of it would be the wrong part."""
    found: list[Need | None] = [None] * len(description.inputs)
    for result in description.results:
        for element in elements(result.element):
            need = _need_of(element, name, extents)
            known = found[element.tensor]
            if need is None or (known is not None and known.part != need.part):
                return None
            if known is not None:
                need = Need(need.part, max(known.before, need.before), max(known.after, need.after))
            found[element.tensor] = need
    return tuple(need or Need("R") for need in found)


def _need_of(element: Element, name: str, extents: Extents) -> Need | None:
    at = [(d, index) for d, index in enumerate(element.at) if index is not None and index.terms.get(name)]
    if not at:
        return Need("R")
    return _share(element.tensor, *at[0], name, extents) if len(at) == 1 else None


def _share(tensor: int, d: int, index: Index, name: str, extents: Extents) -> Need | None:
    a = index.terms[name]
    others = {other: b for other, b in index.terms.items() if other != name and b}
    plain = a == 1 and not others and not index.constant
    if not plain and (tensor, d) not in extents.scaled:
        return None
    if a < 1 or a != int(a) or any(b < 0 or other not in extents.windows for other, b in others.items()):
        return None
    reach = sum(b * (extents.windows[other] - 1) for other, b in others.items())
    before, after = -index.constant, reach + index.constant - (a - 1)
    return Need(f"S{d}", max(0, int(before)), max(0, int(after)))


def _hidden_in_opaque(expression: Expression, name: str) -> bool:
    """Return whether an opaque function is asked for an element by this index: its share needs all that it makes."""
    match expression:
        case OpaqueElement(_, _, at):
            return any(index.terms.get(name) for index in at)
        case Added(a, b) | Multiplied(a, b):
            return _hidden_in_opaque(a, name) or _hidden_in_opaque(b, name)
        case Called(_, arguments):
            return any(_hidden_in_opaque(one, name) for one in arguments)
        case Reduced(_, _, body):
            return _hidden_in_opaque(body, name)
    return False


def _summed_over(expression: Expression) -> tuple[str, ...]:
    """Indices that the whole expression is a sum over: nothing is added to the sum, and no function is around it."""
    match expression:
        case Reduced("sum", over, _):
            return over
        case Multiplied(a, b):
            # A factor that does not depend on the index may stand before the sum.
            return (*_summed_over(a), *_summed_over(b)) if bool(_summed_over(a)) != bool(_summed_over(b)) else ()
    return ()


def _degree(expression: Expression, tensors: Sequence[int]) -> int | None:
    """Degree of a form in these tensors, which all its terms have; None where it is not a form (functions, others)."""
    match expression:
        case Number(value):
            return None if value == 0 else 0
        case Element(tensor, _):
            return int(tensor in tensors)
        case Added(a, b):
            one, other = _degree(a, tensors), _degree(b, tensors)
            return one if one == other else None
        case Multiplied(a, b):
            one, other = _degree(a, tensors), _degree(b, tensors)
            return None if one is None or other is None else one + other
        case Reduced(by, _, body):
            degree = _degree(body, tensors)
            return degree if by == "sum" or degree == 0 else None
        case Called(_, arguments):
            return 0 if all(_degree(one, tensors) == 0 for one in arguments) else None
        case OpaqueElement(_, reads, _):
            return None if any(read.tensor in tensors for read in reads) else 0
    return None
