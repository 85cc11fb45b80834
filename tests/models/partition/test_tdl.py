"""What is found from descriptions, against running them on the shares of two and three workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

import numpy as np
import pytest

from loadmaster.errors import InputError
from loadmaster.models.partition.problem import Strategy
from loadmaster.models.partition.tdl import operators
from loadmaster.models.partition.tdl.discovery import Extents, strategies
from loadmaster.models.partition.tdl.language import (
    Description,
    Element,
    Expression,
    Index,
    Max,
    Min,
    Opaque,
    Prod,
    Sum,
    call,
    describe,
)
from loadmaster.solvers.program import FloatArray
from tests.models.partition.tdl_interpreter import run

CONV1D = describe(lambda data, filters: lambda b, co, x: Sum(lambda ci, dx: data[b, ci, x + dx] * filters[ci, co, dx]))
WINDOWS = Extents({"dx": 3}, scaled=frozenset({(0, 2)}))


def holds(
    description: Description, strategy: Strategy, inputs: Sequence[FloatArray], extents: Mapping[str, int], workers: int
) -> bool:
    """Whether shares make up the whole. A share's indices count from its own start; halos are zero outside."""
    whole = run(description, inputs, extents)
    parts = []
    for worker in range(workers):
        shares, offsets = [], {}
        for n, (tensor, need) in enumerate(zip(inputs, strategy.inputs, strict=True)):
            share = tensor
            if need.part == "P":
                rng = np.random.default_rng(n)
                terms = [rng.standard_normal(tensor.shape) for _ in range(workers - 1)]
                share = [*terms, tensor - sum(terms)][worker] if terms else tensor
            elif need.part != "R":
                d = int(need.part[1:])
                size = tensor.shape[d] // workers
                padding = [(need.before, need.after) if axis == d else (0, 0) for axis in range(tensor.ndim)]
                # With its halo, and then empty up to where an index that counts from the start would begin.
                wide = np.pad(tensor, padding)
                share = np.take(wide, range(worker * size, (worker + 1) * size + need.before + need.after), axis=d)
                offsets[n, d] = need.before
            shares.append(share)
        own = {name: count // workers if name == strategy.name else count for name, count in extents.items()}
        parts.append(run(_shifted(description, offsets), shares, own))
    for n, (result, part) in enumerate(zip(whole, strategy.outputs, strict=True)):
        of = [one[n] for one in parts]
        made = np.concatenate(of, axis=int(part[1:])) if part != "P" else sum(of)
        if made.shape != result.shape or not np.allclose(made, result, rtol=1e-11, atol=1e-11):
            return False
    return True


def _shifted(description: Description, offsets: Mapping[tuple[int, int], int]) -> Description:
    """The description on shares that begin with a halo."""

    def of(expression: object) -> object:
        if isinstance(expression, Element):
            at = tuple(
                None if index is None else index + offsets.get((expression.tensor, d), 0)
                for d, index in enumerate(expression.at)
            )
            return Element(expression.tensor, at)
        if isinstance(expression, tuple):
            return tuple(of(one) for one in expression)
        if isinstance(expression, Expression):
            return replace(expression, **{f.name: of(getattr(expression, f.name)) for f in fields(expression)})  # type: ignore[type-var]
        return expression

    results = tuple(replace(result, element=of(result.element)) for result in description.results)  # type: ignore[arg-type]
    return Description(description.inputs, results)


def expect_all_hold(
    description: Description, shapes: Sequence[Sequence[int]], extents: Mapping[str, int], known: Extents | None = None
) -> dict[str, Strategy]:
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(tuple(shape)) for shape in shapes]
    found = strategies(description, known)
    for strategy in found:
        for workers in (2, 3):
            assert holds(description, strategy, inputs, extents, workers), strategy
    return {strategy.name: strategy for strategy in found}


def parts_of(strategy: Strategy) -> str:
    return f"{' '.join(need.part for need in strategy.inputs)} -> {' '.join(strategy.outputs)}"


@pytest.mark.slow
def test_conv1d_of_the_thesis() -> None:
    extents = {"b": 6, "co": 6, "x": 6, "ci": 6, "dx": 3}
    found = expect_all_hold(CONV1D, [(6, 6, 6), (6, 6, 3)], extents, WINDOWS)
    assert {name: parts_of(strategy) for name, strategy in found.items()} == {
        "b": "S0 R -> S0",
        "co": "R S1 -> S1",
        "x": "S2 R -> S2",
        "ci": "S1 S0 -> P",
        "terms of data": "P R -> P",
        "terms of filters": "R P -> P",
    }
    assert (found["x"].inputs[0].before, found["x"].inputs[0].after) == (0, 2)


def test_a_constant_offset_is_a_halo() -> None:
    shifted = describe(lambda a: lambda i: a[i + 2])
    found = expect_all_hold(shifted, [(6,)], {"i": 6}, Extents(scaled=frozenset({(0, 0)})))
    assert (found["i"].inputs[0].before, found["i"].inputs[0].after) == (0, 2)
    centred = describe(lambda a: lambda i: Sum(lambda j: a[i + j - 1]))
    found = expect_all_hold(centred, [(6,)], {"i": 6, "j": 3}, Extents({"j": 3}, scaled=frozenset({(0, 0)})))
    assert (found["i"].inputs[0].before, found["i"].inputs[0].after) == (1, 1)


def test_opaque_functions_are_split_only_around() -> None:
    cholesky = describe(lambda mats: lambda b, i, j: Opaque("cholesky")(mats[b, :, :])[i, j])
    assert [parts_of(s) for s in strategies(cholesky)] == ["S0 -> S0"]


@pytest.mark.parametrize(
    ("description", "shapes", "extents", "found"),
    [
        (describe(lambda a, b: lambda i: a[i] + b[i]), [(6,)] * 2, {"i": 6}, {"i", "terms of a, b"}),
        (describe(lambda a, b: lambda i: a[i] * b[i]), [(6,)] * 2, {"i": 6}, {"i", "terms of a", "terms of b"}),
        (describe(lambda a: lambda i: call("exp", a[i])), [(6,)], {"i": 6}, {"i"}),
        # Sums within a function, or beside something else, are no terms.
        (describe(lambda a: lambda i: call("sqrt", Sum(lambda j: a[i, j]))), [(6, 6)], {"i": 6, "j": 6}, {"i"}),
        (
            describe(lambda a, b: lambda i: b[i] + Sum(lambda j: a[i, j])),
            [(6, 6), (6,)],
            {"i": 6, "j": 6},
            {"i", "terms of a, b"},
        ),
        (
            describe(lambda a: lambda i: 2 * Sum(lambda j: a[i, j])),
            [(6, 6)],
            {"i": 6, "j": 6},
            {"i", "j", "terms of a"},
        ),
        (describe(lambda a: lambda i: Max(lambda j: a[i, j])), [(6, 6)], {"i": 6, "j": 6}, {"i"}),
        (describe(lambda a: lambda i: Min(lambda j: a[i, j])), [(6, 6)], {"i": 6, "j": 6}, {"i"}),
        (describe(lambda a: lambda i: Prod(lambda j: a[i, j])), [(6, 6)], {"i": 6, "j": 6}, {"i"}),
        # One index in two dimensions of a tensor: no share of it is enough.
        (describe(lambda a, b: lambda i: a[i, i] * b[i]), [(6, 6), (6,)], {"i": 6}, {"terms of a", "terms of b"}),
        (describe(lambda a: lambda i: a[-1 * i + 5]), [(6,)], {"i": 6}, {"terms of a"}),
        (describe(lambda a: lambda i, j: a[j, i]), [(6, 12)], {"i": 12, "j": 6}, {"i", "j", "terms of a"}),
        (describe(lambda a, b: lambda i: a[i] - b[i] / 2.0), [(6,)] * 2, {"i": 6}, {"i", "terms of a, b"}),
    ],
)
def test_small_descriptions(
    description: Description, shapes: list[tuple[int, ...]], extents: dict[str, int], found: set[str]
) -> None:
    assert {strategy.name for strategy in strategies(description)} == found
    expect_all_hold(description, shapes, extents)


def test_products_are_split_along_every_index() -> None:
    found = {s.name: parts_of(s) for s in operators.product("mk,kn->mn").strategies}
    assert (found["m"], found["n"], found["k"]) == ("S0 R -> S0", "R S1 -> S1", "S1 S0 -> P")


def test_what_is_no_index_is_refused() -> None:
    with pytest.raises(InputError, match="multiplied by an index"):
        describe(lambda a: lambda i, j: a[i * j])
    with pytest.raises(InputError, match=r"a\[...\].*is no index.*affine"):
        describe(lambda a: lambda i: a["i"])
    assert (Index({"i": 1.0}) * 4 / 2 - 1).constant == -1.0
