"""What the checker accepts and refuses, and what it counts, on a step of two products by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadmaster.errors import InputError
from loadmaster.models.partition import documents
from loadmaster.models.partition.checker import PartitionCheck, check
from loadmaster.models.partition.limits import least_bytes, spread, summary, whole_bytes
from loadmaster.models.partition.plan import Redistribution, Splits
from loadmaster.models.partition.problem import PartitionProblem
from tests.models.partition.instances import axes, two_products

PLENTY = 1 << 40
M, N, K, WHOLE = range(4)


def split(x: str, a: str, h: str, b: str, y: str, first: int, relu: int, second: int) -> Splits:
    return Splits(tuple((p,) for p in (x, a, h, h, b, y)), ((first,), (relu,), (second,)))


# Megatron's pair: columns of the first matrix, rows of the second, one sum at the end.
PAIR = split("R", "S1", "S1", "S0", "R", N, 1, K)


def test_columns_then_rows_need_one_sum() -> None:
    problem = two_products(2)
    verdict = check(problem, PAIR, PLENTY)
    assert verdict.ok, verdict.violations
    y_bytes = 4 * 64 * 4
    # An all-reduce: each of two GPUs receives half of a sum and half of the result.
    assert verdict.redistributions == (Redistribution(2, 5, 2 * y_bytes, 2 * (y_bytes / 2) / 1000, output=True),)
    assert (verdict.moved_bytes, verdict.compute_us) == (2 * y_bytes, 8.5)
    assert verdict.objective == pytest.approx(8.5 + y_bytes / 1000)
    # Inputs and parameters stay; then half of r, y, and y before its sum.
    lasting = 4 * 64 * 4 + 2 * 64 * 64 * 4 // 2
    assert verdict.peak_bytes == lasting + y_bytes // 2 + 2 * y_bytes
    assert verdict.resident_bytes.tolist() == [lasting + y_bytes // 2, lasting + y_bytes, verdict.peak_bytes]


def test_data_parallel_moves_nothing() -> None:
    assert check(two_products(4), split("S0", "R", "S0", "R", "S0", M, 0, M), PLENTY).moved_bytes == 0


def test_parameters_are_gathered_beside_kernels() -> None:
    problem = two_products(2)
    gathered = split("S0", "S0", "S0", "S0", "S0", M, 0, M)
    alone = check(problem, gathered, PLENTY)
    beside = check(replace(problem, overlap=0.75), gathered, PLENTY)
    assert alone.transfer_us > 0 and beside.transfer_us == pytest.approx(alone.transfer_us / 4)
    assert (beside.moved_bytes, beside.peak_bytes) == (alone.moved_bytes, alone.peak_bytes)
    # The terms of y are no gradient: the next operator waits for their sum.
    assert check(replace(problem, overlap=0.75), PAIR, PLENTY).transfer_us == check(problem, PAIR, PLENTY).transfer_us


@pytest.mark.parametrize("overlap", [-0.1, 1.0])
def test_an_overlap_that_is_no_share(overlap: float) -> None:
    with pytest.raises(InputError, match="overlap"):
        documents.check_problem(replace(two_products(2), overlap=overlap))


def test_shards_that_are_gathered_take_a_buffer() -> None:
    verdict = check(two_products(2), split("S0", "S0", "S0", "S0", "S0", M, 0, M), PLENTY)
    assert verdict.ok and verdict.moved_bytes == 2 * 64 * 64 * 4
    assert verdict.resident_bytes[0] >= 64 * 64 * 4  # all of a


@pytest.mark.parametrize(
    ("splits", "words"),
    [
        (replace(PAIR, placements=PAIR.placements[:-1]), "there are 5 placements for 6"),
        (replace(PAIR, strategies=((N, N), (1,), (K,))), r"strategies\[0\] is for 2 axes, the mesh has 1"),
        (replace(PAIR, strategies=((9,), (1,), (K,))), "operator 0 .* has no strategy 9"),
        (split("R", "S1", "S1", "S0", "S5", N, 1, K), r"tensor 5 \(y\), \[4, 64\], as S5: shares are not equal"),
        (split("R", "S1", "S1", "S0", "P", N, 1, K), r"\(y\).*lies as terms of a sum"),
        (
            split("R", "S1", "S1", "S0", "R", N, 0, K),
            "operator 1 .* elementwise, and does not run where",
        ),
    ],
)
def test_what_does_not_hold_is_said(splits: Splits, words: str) -> None:
    assert _said(check(two_products(2), splits, PLENTY), words)


def _said(verdict: PartitionCheck, words: str) -> bool:
    import re

    return not verdict.ok and any(re.search(words, violation) for violation in verdict.violations)


def test_shares_that_are_not_equal() -> None:
    problem = two_products(8)  # four rows
    assert _said(check(problem, split("S0", "R", "S0", "R", "S0", M, 0, M), PLENTY), "shares are not equal")
    weighted = replace(two_products(2), axes=axes((2, 1)))
    words = r"tensor 0 \(x\).*shares are not equal, dimension 0 is no multiple of 3"
    assert _said(check(weighted, split("S0", "R", "S0", "R", "S0", M, 0, M), PLENTY), words)
    whole = split("R", "R", "R", "R", "R", M, 2, M)
    assert _said(check(problem, whole, PLENTY), "operator 0 .* cannot run as m on tensors of these shapes")


def test_without_replicas_everything_is_divided() -> None:
    problem = two_products(2, replicas=False)
    assert _said(check(problem, PAIR, PLENTY), r"tensor 0 \(x\).*can be divided further")
    undivided = split("S0", "S1", "S1", "S0", "S0", WHOLE, 1, K)
    assert _said(check(problem, undivided, PLENTY), "operator 0 .* cannot run as whole")


def test_a_launch_is_not_divided() -> None:
    launched = changed(two_products(2), operator0={"launch_us": 6.0})
    plain, found = (check(problem, PAIR, PLENTY).summary()["compute_us"] for problem in (two_products(2), launched))
    assert found == plain + 6.0 / 2


def test_over_the_budget() -> None:
    problem = two_products(2)
    peak = check(problem, PAIR, PLENTY).peak_bytes
    assert check(problem, PAIR, peak).ok
    assert _said(check(problem, PAIR, peak - 1), "a worker holds .* at operator 2")


def test_ties_are_kept() -> None:
    problem = two_products(2)
    tied = replace(problem, tensors=tuple(replace(t, tie="w") if t.name in "ab" else t for t in problem.tensors))
    assert _said(check(tied, PAIR, PLENTY), r"tensors\[4\] is split otherwise than others of its tie w")


def test_limits_by_hand() -> None:
    problem = two_products(2)
    lasting = (4 * 64 + 2 * 64 * 64) * 4
    assert whole_bytes(problem) == lasting + 2 * 4 * 64 * 4
    assert least_bytes(problem) == whole_bytes(problem) // 2
    assert spread(problem, 3)[::2] == [least_bytes(problem), whole_bytes(problem)]
    told = summary(problem)
    assert told.figures["bytes_by_role"] == {"input": 1024, "parameter": 32768, "activation": 3072}


def test_a_document_is_read_as_it_was_written() -> None:
    problem = two_products(2, 2, budget_bytes=1 << 20)
    assert documents.read_problem(documents.write_problem(problem)) == problem


def changed(problem: PartitionProblem, **changes: object) -> PartitionProblem:
    """With other fields of one operator, tensor or axis: ``operator1={...}``."""
    for name, fields in changes.items():
        what, n = f"{name[:-1]}s" if name[:-1] != "axis" else "axes", int(name[-1])
        rows = list(getattr(problem, what))
        rows[n] = replace(rows[n], **fields)  # type: ignore[arg-type]
        problem = replace(problem, **{what: tuple(rows)})  # type: ignore[arg-type]
    return problem


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"operator0": {"signature": 7}}, r"operators\[0\].signature.*is no signature.*0 to 2"),
        ({"operator0": {"inputs": (0, 9)}}, r"operators\[0\].inputs.*is no tensor.*0 to 5"),
        ({"operator0": {"inputs": (0,)}}, r"operators\[0\].inputs.*strategies of product are for 2"),
        ({"operator0": {"inputs": (3, 1)}}, r"operators\[0\].inputs.*made by a later operator"),
        (
            {"operator0": {"launch_us": 9.0}},
            r"operators\[0\].launch_us.*more than the operator takes.*at most time_us, 8",
        ),
        ({"operator2": {"outputs": (2,)}}, r"operators\[2\].outputs.*made by operators\[0\] too"),
        ({"tensor2": {"shape": (256,)}}, r"operators\[0\].signature.*splits h as S1.*1 dimensions"),
        ({"axis1": {"name": "axis 0"}}, r"axes\[1\].name.*another axis's name too"),
        ({"axis1": {"weights": (1, 2, 3)}}, r"axes\[1\].weights.*for 3 workers of 2.*give 2 numbers"),
        ({"axis0": {"speeds": (1.0,)}}, r"axes\[0\].speeds.*for 1 workers of 2"),
        ({"axis0": {"memory_factors": (0.5, 0.5)}}, r"axes\[0\].memory_factors.*no worker with all of it"),
        ({"tensor0": {"tie": "t"}, "tensor1": {"tie": "t", "shape": (64, 64, 1)}}, r"tensors\[1\].tie"),
        ({"operator0": {"tie": "t"}, "operator1": {"tie": "t"}}, r"operators\[1\].tie.*two signatures"),
    ],
)
def test_what_means_nothing_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=f"(?i){words}"):
        documents.check_problem(changed(two_products(2, 2), **changes))
