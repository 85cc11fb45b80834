"""Programs of graph layers: values, each made by one operator from values before it, [Wu24] section 3.3.2.

A value has a *row* for every element of its space (:mod:`.spaces`) and a shape that every row has: ``()`` a number,
``(D,)`` a vector, ``(H,)`` a number for each head, ``(H, D)`` a vector for each head; a matrix ``(K, M)`` or
``(H, K, M)`` for a weight. Shape and space are derived from the operator (:mod:`.operators`), never stated, except for
given values:

    feature     rows that the caller gives: of nodes or of edges
    parameter   a weight: one, one for each relation, or one for each node type
    degree      number of edges of a node: of all (``target``, ``source``) or of one relation (``target_pair``)

The program of a training step holds both passes: its first ``forward_count`` values are the forward pass, the rest is
added by :mod:`.autodiff`. Nothing in a program says where or how anything is computed or kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar

from loadmaster.errors import InputError
from loadmaster.models.fields import READING, Bounds, Index
from loadmaster.models.graph.operators import GIVEN, OPERATORS, Typed, Value, expect_operator


@dataclass(frozen=True)
class Program:
    """Program of a layer or a step: values in the order in which they can be computed.

    Attributes:
        outputs: numbers of the values that are the layer's results.
        forward_count: number of values of the forward pass; all where there is no backward pass.
        gradients: (number of a given value, number of its gradient).
    """

    values: Annotated[tuple[Value, ...], Bounds(min_length=1, max_length=2_000)]
    outputs: Annotated[tuple[Index, ...], Bounds(min_length=1, max_length=100)]
    forward_count: Annotated[int, Bounds(ge=1)]
    gradients: tuple[tuple[Index, Index], ...] = ()

    __pydantic_config__: ClassVar = READING

    @cached_property
    def types(self) -> tuple[Typed, ...]:
        """Shape and space of every value; raises InputError for an unknown operator, or one that refuses its inputs."""
        found: list[Typed] = []
        for n, value in enumerate(self.values):
            if any(i >= n for i in value.inputs):
                remedy = "Put every value after those that it reads."
                raise InputError(f"program.values[{n}].inputs", list(value.inputs), "names a later value", remedy)
            expect_operator(f"program.values[{n}].op", value.op)
            found.append(
                OPERATORS[value.op].typed(
                    f"program.values[{n}] ({value.name})", value, [found[i] for i in value.inputs]
                )
            )
        return tuple(found)

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """Readers of every value, by number."""
        found: list[list[int]] = [[] for _ in self.values]
        for n, value in enumerate(self.values):
            for i in dict.fromkeys(value.inputs):
                found[i].append(n)
        return tuple(map(tuple, found))

    @cached_property
    def above(self) -> tuple[frozenset[int], ...]:
        """Ancestors of every value: all that it is made from."""
        found: list[frozenset[int]] = []
        for value in self.values:
            found.append(frozenset(value.inputs).union(*(found[i] for i in value.inputs)))
        return tuple(found)

    @property
    def results(self) -> tuple[int, ...]:
        """Numbers of the results: outputs, then gradients."""
        return (*self.outputs, *(gradient for _, gradient in self.gradients))

    def given(self, op: str) -> Mapping[str, int]:
        """Numbers of the given values of one sort, by name: features, parameters, degrees or gradients."""
        return {value.name: n for n, value in enumerate(self.values) if value.op == op}

    def described(self) -> Iterator[str]:
        """Iterate over lines for people, one for each value: ``hs = linear(s, W)  # source_pair (64,)``."""
        for value, typed in zip(self.values, self.types, strict=True):
            names = ", ".join(self.values[i].name for i in value.inputs)
            more = [
                f"{word}={v}"
                for word in ("number", "count", "over", "reduce")
                if (v := getattr(value, word)) is not None
            ]
            if value.op not in GIVEN and value.space is not None:
                more.append(f"to={value.space}")
            inside = ", ".join([names, *more] if names else more)
            yield f"{value.name} = {value.op}({inside})  # {typed.space} {typed.shape}"


@dataclass
class Builder:
    """Builder that makes a program value by value; equal values are made once."""

    values: list[Value] = field(default_factory=list)
    types: list[Typed] = field(default_factory=list)
    _known: dict[Value, int] = field(default_factory=dict)
    _names: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, program: Program) -> Builder:
        """Make a builder that continues from the values of a program."""
        found = cls([*program.values], [*program.types])
        found._known = {replace(value, name=""): n for n, value in enumerate(program.values) if value.op not in GIVEN}
        found._names = {value.name for value in program.values}
        return found

    def add(self, value: Value) -> int:
        """Add a value, or find one that is equal except for its name; return its number."""
        key = replace(value, name="")
        if value.op not in GIVEN and key in self._known:
            return self._known[key]
        expect_operator("op", value.op)
        self.types.append(OPERATORS[value.op].typed(value.name, value, [self.types[i] for i in value.inputs]))
        self.values.append(value)
        self._names.add(value.name)
        self._known[key] = len(self.values) - 1
        return len(self.values) - 1

    def made(self, op: str, *inputs: int, name: str | None = None, **more: Any) -> int:
        """Add a value by its operator, with a generated name where none is given; return its number."""
        at = len(self.values)
        while f"{op}{at}" in self._names:
            at += 1
        return self.add(Value(name or f"{op}{at}", op, inputs, **more))

    def program(self, outputs: Sequence[int], forward_count: int, gradients: Sequence[tuple[int, int]] = ()) -> Program:
        """Build the program, without values that no result needs; given values stay."""
        needed = {n for n, value in enumerate(self.values) if value.op in GIVEN}
        reached = [*outputs, *(gradient for _, gradient in gradients)]
        while reached:
            n = reached.pop()
            if n not in needed or self.values[n].inputs:
                needed.add(n)
                reached += [i for i in self.values[n].inputs if i not in needed]
        order = sorted(needed)
        number = {n: at for at, n in enumerate(order)}
        values = tuple(replace(self.values[n], inputs=tuple(number[i] for i in self.values[n].inputs)) for n in order)
        return Program(
            values,
            tuple(number[n] for n in outputs),
            sum(n < forward_count for n in order),
            tuple((number[of], number[gradient]) for of, gradient in gradients),
        )
