"""Copies of what several operators read: gathered once, held until the last one; nothing where not used."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadmaster.errors import InputError
from loadmaster.models.partition.checker import check
from loadmaster.models.partition.classes import Classes
from loadmaster.models.partition.copies import with_copies
from loadmaster.models.partition.documents import check_problem, read_problem, write_problem
from loadmaster.models.partition.limits import least_bytes, whole_bytes
from loadmaster.models.partition.placements import WHOLE
from loadmaster.models.partition.plan import Splits
from loadmaster.models.partition.problem import (
    Need,
    Operator,
    PartitionProblem,
    Signature,
    Strategy,
    Tensor,
)
from tests.models.partition.instances import SIGNATURES, axes, every_plan, random_problem

PLENTY = 1 << 40
M, N = 0, 1
X_BYTES = 8 * 64 * 4


def three_products(**options: object) -> PartitionProblem:
    """q, k, v = x a, x b, x c."""
    matrices = tuple(Tensor(name, (64, 64), role="parameter") for name in "abc")
    made = tuple(Tensor(name, (8, 64)) for name in "qkv")
    operators = tuple(Operator("mm", 0, (0, 1 + n), (4 + n,), 8.0) for n in range(3))
    tensors = (Tensor("x", (8, 64), role="input"), *matrices, *made)
    return PartitionProblem("three-products", axes(2), tensors, operators, SIGNATURES, **options)  # type: ignore[arg-type]


def placed(x: str, *copy: str) -> Splits:
    """Rows of x on each GPU; columns of the matrices, and of what is made: each product needs all of x."""
    runs = [(N,)] * 3
    if copy:
        runs.insert(0, ({"S0": 0, "S1": 1, "R": 2}[copy[0]],))
    return Splits(tuple((p,) for p in (x, *["S1"] * 6, *copy)), tuple(runs))


def test_a_shared_gather_is_paid_once() -> None:
    bare = three_products()
    apart = check(bare, placed("S0"), PLENTY)
    shared = check(with_copies(bare, 3), placed("S0", "R"), PLENTY)
    assert apart.ok and shared.ok, shared.violations
    assert (apart.moved_bytes, shared.moved_bytes) == (3 * X_BYTES, X_BYTES)
    # One buffer each time; the copy lies there from the first product to the last.
    shares = X_BYTES // 2 + 3 * 64 * 64 * 4 // 2
    made = X_BYTES // 2
    assert apart.resident_bytes.tolist() == [shares + X_BYTES + made * n for n in (1, 1, 1)]
    assert shared.resident_bytes.tolist() == [shares + X_BYTES, *[shares + X_BYTES + made * n for n in (1, 1, 1)]]


def test_a_copy_that_lies_as_its_original_is_the_original() -> None:
    bare = three_products()
    apart = check(bare, placed("S0"), PLENTY)
    alias = check(with_copies(bare, 3), placed("S0", "S0"), PLENTY)
    assert alias.ok and alias.objective == apart.objective
    assert alias.resident_bytes[1:].tolist() == apart.resident_bytes.tolist()


def test_limits_count_no_copies() -> None:
    bare = three_products()
    copied = with_copies(bare, 3)
    assert (least_bytes(copied), whole_bytes(copied)) == (least_bytes(bare), whole_bytes(bare))


def test_passes_have_copies_of_their_own() -> None:
    copied = with_copies(three_products(), 1)
    assert copied.copied == {7: 0}
    assert [o.op for o in copied.operators] == ["mm", "copy", "mm", "mm"]
    assert [o.inputs[0] for o in copied.operators] == [0, 0, 7, 7]


def test_a_parameter_that_both_passes_read_can_be_gathered_once() -> None:
    """Two products of each pass read a parameter that is divided by rows, and need its columns whole."""
    inputs = tuple(Tensor(f"x{n}", (8, 64), role="input") for n in range(4))
    weight, made = Tensor("w", (64, 64), role="parameter"), tuple(Tensor(f"y{n}", (8, 64)) for n in range(4))
    operators = tuple(Operator("mm", 0, (n, 4), (5 + n,), 8.0) for n in range(4))
    bare = PartitionProblem("passes", axes(2), (*inputs, weight, *made), operators, SIGNATURES)
    copied = with_copies(bare, 2)
    both, forward, backward = 9, 10, 11
    assert copied.copied == {both: 4, forward: both, backward: both}
    assert [o.op for o in copied.operators] == ["copy", "copy", "mm", "mm", "copy", "mm", "mm"]

    def moved_bytes(*copies: str) -> int:
        rows, runs = {"S0": 0, "R": 2}, [(M,)] * 7
        for n, part in zip((0, 1, 4), copies, strict=True):
            runs[n] = (rows[part],)
        parts = (*["S0"] * 9, *copies)
        verdict = check(copied, Splits(tuple((part,) for part in parts), tuple(runs)), PLENTY)
        assert verdict.ok, verdict.violations
        return verdict.moved_bytes

    gathered = 64 * 64 * 4
    assert moved_bytes("R", "R", "R") == gathered  # once
    assert moved_bytes("S0", "R", "R") == 2 * gathered  # in each pass
    assert moved_bytes("S0", "S0", "S0") == 4 * gathered  # by each product


def test_elementwise_readers_need_no_copy() -> None:
    of = three_products()
    relus = tuple(Operator("relu", 1, (0,), (4 + n,)) for n in range(3))
    assert with_copies(replace(of, operators=relus), 3) == replace(of, operators=relus)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 3, 7])
def test_there_is_a_plan_with_copies_for_every_plan_without(seed: int) -> None:
    bare = random_problem(seed, operators=2)
    copied = with_copies(bare, 2)
    assert len(copied.copied) == 1
    (at,) = (n for n, o in enumerate(copied.operators) if o.op == "copy")
    for splits in every_plan(bare):
        found = check(bare, splits, PLENTY)
        if found.ok:
            part = splits.placements[copied.copied[len(bare.tensors)]]
            own = {"S0": 0, "S1": 1, "R": 2}[part[0]]
            runs = [*splits.strategies[:at], (own,), *splits.strategies[at:]]
            alias = check(copied, Splits((*splits.placements, part), tuple(runs)), PLENTY)
            assert alias.ok and alias.objective == pytest.approx(found.objective)
            assert alias.peak_bytes == found.peak_bytes


def test_a_copy_can_lie_wherever_its_original_can() -> None:
    """q is made by columns, too; both of its readers know rows only."""
    rows = Signature("rows", (Strategy("0", (Need("S0"),), ("S0",)),))
    made = three_products()
    readers = (Operator("rows", 3, (4,), (5,)), Operator("rows", 3, (4,), (6,)))
    copied = with_copies(replace(made, operators=(made.operators[0], *readers), signatures=(*made.signatures, rows)), 3)
    classes = Classes(copied)
    possible = {t: found for of, found in zip(classes.tensors, classes.placements, strict=True) for t in of}
    assert copied.copied == {7: 4} and possible[7] == possible[4]
    assert {part for (part,) in possible[4]} == {0, 1, WHOLE}


def test_without_replicas_nothing_is_stored_twice() -> None:
    copied = with_copies(three_products(replicas=False), 3)
    verdict = check(copied, placed("S0", "S1"), PLENTY)
    assert any("is a copy, and does not run where" in words for words in verdict.violations)


def test_documents_keep_copies() -> None:
    copied = with_copies(three_products(), 3)
    assert read_problem(write_problem(copied)) == copied


def test_what_is_no_copy_is_refused() -> None:
    copied = with_copies(three_products(), 3)
    other = replace(copied, tensors=(*copied.tensors[:-1], replace(copied.tensors[-1], shape=(8, 32))))
    with pytest.raises(InputError, match=r"operators\[0\].*no copy of one tensor.*equal shape"):
        check_problem(other)
    number = copied.operators[0].signature
    signature = copied.signatures[number]
    turned = tuple(replace(s, outputs=("S1",) if s.outputs == ("S0",) else s.outputs) for s in signature.strategies)
    signatures = (*copied.signatures[:number], replace(signature, strategies=turned))
    with pytest.raises(InputError, match=r"signatures\[3\].strategies\[0\].*does not copy"):
        check_problem(replace(copied, signatures=signatures))
