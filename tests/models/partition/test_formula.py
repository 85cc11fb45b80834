"""Calls in letters: what can be split, what kernels are told, and what does not fit."""

from __future__ import annotations

import pytest

from loadmaster.errors import InputError
from loadmaster.models.partition.problem import Strategy
from loadmaster.models.partition.tdl.aten import RULES, formula_of
from loadmaster.models.partition.tdl.calls import TdlCall
from loadmaster.models.partition.tdl.formula import Formula


def words(strategies: tuple[Strategy, ...]) -> dict[str, str]:
    return {s.name: f"{' '.join(need.part for need in s.inputs)} -> {' '.join(s.outputs)}" for s in strategies}


@pytest.mark.parametrize(
    ("inputs", "results", "expected"),
    [
        ("mk,kn", "mn", {"m": "S0 R -> S0", "n": "R S1 -> S1", "k": "S1 S0 -> P"}),
        ("abH,H", "abH", {"a": "S0 R -> S0", "b": "S1 R -> S1"}),
        ("abH,abH,H", "abH,H", {"a": "S0 S0 R -> S0 P", "b": "S1 S1 R -> S1 P"}),
        ("a1,ab", "ab", {"a": "S0 S0 -> S0", "b": "R S1 -> S1"}),
        ("C,C", "C", {}),
        ("ab,b", "ab,b", {"a": "S0 R -> S0 P", "b": "S1 S0 -> S1 S0"}),
    ],
)
def test_strategies_follow_from_letters(inputs: str, results: str, expected: dict[str, str]) -> None:
    formula = Formula(tuple(inputs.split(",")), tuple(results.split(",")))
    assert words(formula.strategies) == expected


def test_what_a_kernel_is_told_can_be_split_without_an_input() -> None:
    assert words(Formula((), ("ab",), told={"size": "ab"}).strategies) == {"a": " -> S0", "b": " -> S1"}
    assert Formula((), ("ab",)).strategies == ()


def test_arguments_are_told_as_they_were() -> None:
    formula = Formula(("aHI",), ("aHI",), told={"shape": "HI", "rows": "a"}, products={"HxW": "HI"})
    extents = formula.extents([(4, 2, 3), (4, 2, 3)])
    assert formula.told_values(extents, {"shape": [2, 3], "rows": 4}) == {"shape": [2, 3], "rows": 4, "HxW": 6}


def test_shapes_that_are_not_the_formulas_are_refused() -> None:
    formula = Formula(("mk", "kn"), ("mn",))
    for shapes in ([(2, 3), (4, 5), (2, 5)], [(2, 3), (3, 5)], [(2,), (3, 5), (2, 5)]):
        with pytest.raises(InputError, match="formula"):
            formula.extents(shapes)


def test_a_call_that_no_rule_expects_has_no_formula() -> None:
    assert formula_of(TdlCall("mm", (), (), {})) is None or formula_of(TdlCall("unheard_of", (), (), {})) is None
    assert formula_of(TdlCall("stack", (("tensors", (2, 3)),), ((1, 2, 3),), {})) is None
    assert len(RULES) > 150
