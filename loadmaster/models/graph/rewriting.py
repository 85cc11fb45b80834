"""Rewriting of a program, value by value, each in its first form or in an equal one ([Wu24] section 3.3.2).

Sites are values that can be made in more than one way:

    dot(linear(x, W), w)             = dot(x, fold(W, w))                       ``weights first``
    dot(linear(x, W), y)             = dot(x, linear(y, transpose(W)))          ``through y``
    linear(linear(x, W), V)          = linear(x, fold(W, V))                    ``weights first``
    sum of f linear(x, W) over edges = sum of linear(sum of f x over edges, W)  ``sum first``
    linear(x, W) for each pair       = the same for each edge                   ``for each edge``
    linear(concat(x, y), W)          = linear(x, W1) + linear(y, W2)            ``by parts``

where f is a number for each edge (or each of its heads). The inner sum is for each target and relation where W is by
relation, and for each target where one W serves all. By parts is a form where some part has fewer rows than the
whole; the products of the parts are further sites.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from loadmaster.errors import InputError
from loadmaster.models.graph.operators import GIVEN, GIVEN_SPACES, Value, fold_shape
from loadmaster.models.graph.program import Builder, Program
from loadmaster.models.graph.spaces import Space, join

FIRST, WEIGHTS, SUM, SPREAD, PARTS = "as written", "weights first", "sum first", "for each edge", "by parts"
PAIRS: dict[Space, Space] = {"target": "target_pair", "source": "source_pair"}


@dataclass(frozen=True)
class Factors:
    """Factors between a sum and the product that it sums: numbers for each edge, or for each of its heads. ``steps``
    are the numbers of values that multiply, innermost first; each with that of its factor, None where it has none."""

    linear: int
    steps: tuple[tuple[int, int | None], ...] = ()
    by_head: bool = False


def sites(program: Program) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Iterate over the sites of a program: numbers of values with several forms, and their forms after the first."""
    for n, value in enumerate(program.values):
        forms: list[str] = []
        if value.op == "dot":
            forms += [form for form, _ in _dot_forms(program, n)]
        elif value.op == "linear" and _inner(program, n) is not None:
            forms.append(WEIGHTS)
        elif value.op == "aggregate" and factors(program, n) is not None:
            forms.append(SUM)
        if forms:
            yield n, tuple(forms)


def spreadable(program: Program) -> Iterator[int]:
    """Products for each pair whose rows are nodes' rows read at edges: for them compact materialization is a choice."""
    for n, value in enumerate(program.values):
        by_pairs = value.op == "linear" and program.types[n].space in PAIRS.values()
        if by_pairs and program.types[value.inputs[0]].space in PAIRS:
            yield n


def divisible(program: Program) -> Iterator[int]:
    """Products of concatenated rows of which some part has fewer rows than the whole."""
    for n, value in enumerate(program.values):
        if value.op == "linear" and program.values[value.inputs[0]].op == "concat":
            weight = program.types[value.inputs[1]].space
            spaces = [join((program.types[x].space, weight)) for x in _parts(program, value.inputs[0])]
            if any(space != program.types[n].space for space in spaces):
                yield n


def rewritten(program: Program, forms: Mapping[int, str]) -> Program:
    """Rewrite a program with some sites in other forms; values that nothing needs any more are left out."""
    return _Rewriting(program, forms).program()


def factors(program: Program, n: int) -> Factors | None:
    """Find the factors of a sum over edges of a product times numbers; None for other values."""
    value = program.values[n]
    if value.reduce != "sum" or value.over != "edge" or value.space not in PAIRS:
        return None
    steps: list[tuple[int, int | None]] = []
    by_head = False
    (at,) = value.inputs
    while (step := program.values[at]).op != "linear":
        if step.op in ("scale", "neg"):
            steps.append((at, None))
            (at,) = step.inputs
            continue
        if step.op not in ("mul", "div"):
            return None
        a, b = step.inputs
        # Numbers for each row: the shorter of the two; a quotient has them below.
        if step.op == "mul" and len(program.types[a].shape) < len(program.types[b].shape):
            a, b = b, a
        if len(program.types[b].shape) >= len(program.types[a].shape):
            return None
        by_head = by_head or bool(program.types[b].shape)
        steps.append((at, b))
        at = a
    return Factors(at, tuple(reversed(steps)), by_head)


def _dot_forms(program: Program, n: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """Iterate over the forms of a dot product, each with its (product, other side)."""
    for linear, other in (program.values[n].inputs, program.values[n].inputs[::-1]):
        if program.values[linear].op != "linear":
            continue
        weight, side = program.types[program.values[linear].inputs[1]], program.types[other]
        if not _joins(weight.space, side.space):
            continue
        if side.space in GIVEN_SPACES["parameter"]:
            if fold_shape(weight.shape, side.shape):
                yield WEIGHTS, (linear, other)
        elif len(side.shape) >= len(weight.shape) - 1:
            yield f"through {program.values[other].name}", (linear, other)


def _inner(program: Program, n: int) -> int | None:
    """Find the product whose rows enter a product, if their weights can be multiplied first; else None."""
    x, weight = program.values[n].inputs
    while program.values[x].op in ("source", "target"):
        (x,) = program.values[x].inputs
    if program.values[x].op != "linear":
        return None
    inner = program.types[program.values[x].inputs[1]]
    # A weight by node type applies to nodes, not to their rows at edges.
    joins = _joins(inner.space, program.types[weight].space, program.types[n].space)
    fits = len(inner.shape) == len(program.types[weight].shape) == 2
    return x if fits and joins else None


def _parts(program: Program, n: int) -> Iterator[int]:
    """Iterate over the vectors that a vector is concatenated of."""
    value = program.values[n]
    if value.op != "concat":
        yield n
        return
    for x in value.inputs:
        yield from _parts(program, x)


def _joins(*spaces: Space) -> bool:
    try:
        join(spaces)
    except InputError:
        return False
    return True


class _Rewriting:
    def __init__(self, program: Program, forms: Mapping[int, str]) -> None:
        self.of, self.forms = program, forms
        self.b = Builder()
        self.made: dict[int, int] = {}

    def program(self) -> Program:
        for n, value in enumerate(self.of.values):
            if value.op in GIVEN:
                self.made[n] = self.b.add(value)
        outputs = [self.at(n) for n in self.of.outputs]
        return self.b.program(outputs, len(self.b.values))

    def at(self, n: int) -> int:
        """Rewrite a value, once; return its new number."""
        if n not in self.made:
            self.made[n] = self._form(n)
        return self.made[n]

    def _form(self, n: int) -> int:
        value, form = self.of.values[n], self.forms.get(n, FIRST)
        if value.op == "linear" and form == PARTS:
            return self._by_parts(n)
        if value.op == "linear":
            return self._linear(n, *self._product(n), spread=form == SPREAD)
        if value.op == "aggregate" and form == SUM:
            return self._sum(n)
        if value.op == "dot":
            return self._dot(n, form)
        return self.b.add(replace(value, inputs=tuple(map(self.at, value.inputs))))

    def _product(self, n: int) -> tuple[int, int]:
        """Make rows and weight of a product, in its form."""
        x, weight = self.of.values[n].inputs
        if self.forms.get(n) != WEIGHTS:
            return self.at(x), self.at(weight)
        inner = _inner(self.of, n)
        assert inner is not None, "a site"
        rows, first = self._product(inner)
        if not _joins(self.b.types[first].space, self.of.types[n].space):
            # Its weight has been multiplied with one that this one cannot follow.
            return self.at(x), self.at(weight)
        while self.of.values[x].op in ("source", "target"):
            rows = self.b.made(self.of.values[x].op, rows)
            (x,) = self.of.values[x].inputs
        return rows, self.b.made("fold", first, self.at(weight), name=f"{self.of.values[n].name}_weights")

    def _linear(self, n: int, x: int, weight: int, *, spread: bool) -> int:
        name = self.of.values[n].name
        if spread:
            x = self.b.made("spread", x, space="edge", name=f"{name}_spread")
        return self._hoisted("linear", x, weight, name)

    def _by_parts(self, n: int) -> int:
        x, weight = self.of.values[n].inputs
        name, start = self.of.values[n].name, 0
        found: int | None = None
        turned = self.b.made("transpose", self.at(weight))
        for at, part in enumerate(_parts(self.of, x)):
            count = self.of.types[part].shape[-1]
            rows = self.b.made("transpose", self.b.made("part", turned, number=float(start), count=count))
            product = self._hoisted("linear", self.at(part), rows, f"{name}_{at}")
            found = product if found is None else self.b.made("add", found, product, name=f"{name}_sum{at}")
            start += count
        assert found is not None, "a site"
        return found

    def _hoisted(self, op: str, x: int, other: int, name: str) -> int:
        """Make a product or dot product; with a weight that serves all, for nodes and not for their rows at edges."""
        seen = self.b.values[x]
        if seen.op in ("source", "target") and self.b.types[other].space == "one":
            return self.b.made(seen.op, self.b.made(op, seen.inputs[0], other, name=name))
        return self.b.made(op, x, other, name=name)

    def _dot(self, n: int, form: str) -> int:
        value = self.of.values[n]
        for other_form, (linear, other) in _dot_forms(self.of, n):
            if form != other_form:
                continue
            x, weight = self._product(linear)
            if not _joins(self.b.types[weight].space, self.of.types[n].space):
                break
            if form == WEIGHTS:
                folded = self.b.made("fold", weight, self.at(other), name=f"{value.name}_weights")
                return self._hoisted("dot", x, folded, value.name)
            turned = self.b.made("transpose", weight)
            return self.b.made(
                "dot", x, self._hoisted("linear", self.at(other), turned, f"{value.name}_through"), name=value.name
            )
        return self._split_dot(n)

    def _split_dot(self, n: int) -> int:
        """Make a dot product; for concatenated vectors and a weight, the sum of the dot products of the parts."""
        value = self.of.values[n]
        for joined, other in (value.inputs, value.inputs[::-1]):
            if self.of.values[joined].op != "concat" or self.of.types[other].space not in GIVEN_SPACES["parameter"]:
                continue
            a, b = map(self.at, self.of.values[joined].inputs)
            weight, start = self.at(other), self.b.types[a].shape[-1]
            parts: list[int] = []
            for x, first in ((a, 0), (b, start)):
                part = self.b.made("part", weight, number=float(first), count=self.b.types[x].shape[-1])
                parts.append(self._hoisted("dot", x, part, f"{value.name}_{len(parts)}"))
            return self.b.made("add", *parts, name=f"{value.name}_sum")
        x, other = map(self.at, value.inputs)
        if self.b.types[x].space in GIVEN_SPACES["parameter"]:
            x, other = other, x
        return self._hoisted("dot", x, other, value.name)

    def _sum(self, n: int) -> int:
        value, of = self.of.values[n], factors(self.of, n)
        assert of is not None and value.space is not None, "a site"
        x, weight = self._product(of.linear)
        if of.by_head and len(self.b.types[x].shape) == 1:
            x = self.b.made("repeat_heads", x, count=self.of.types[of.linear].shape[0])
        for step, factor in of.steps:
            others = () if factor is None else (self.at(factor),)
            x = self.b.add(
                replace(self.of.values[step], inputs=(x, *others), name=f"{self.of.values[step].name}_first")
            )
        typed = self.b.types[weight].space != "one"
        inner = PAIRS[value.space] if typed else value.space
        rows = self.b.made("aggregate", x, over="edge", space=inner, reduce="sum", name=f"{value.name}_first")
        product = self.b.made("linear", rows, weight, name=f"{value.name}_product")
        if not typed:
            return product
        return self.b.add(Value(value.name, "aggregate", (product,), over=inner, space=value.space, reduce="sum"))
