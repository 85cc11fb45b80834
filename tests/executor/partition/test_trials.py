"""Strategies of ATen's operators: what is admitted of calls as models make them, and what is not, with the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from loadmaster.executor.costs.calls import Call
from loadmaster.executor.partition.trials import Admitted, Trials

aten = torch.ops.aten


def t(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape)))


def admitted(target: Callable[..., Any], *args: Any, **kwargs: Any) -> Admitted:
    node = Call.of(target, args, kwargs, target(*args, **kwargs)).node(fx.Graph())
    return Trials().of(node)


def words(found: Admitted) -> set[str]:
    return {f"{' '.join(need.part for need in s.inputs)} -> {' '.join(s.outputs)}" for s in found.strategies}


IDS = torch.tensor([[0, 5, 3], [4, 1, 0]])
IMAGE = t(2, 4, 8, 8)
HEADS = t(2, 4, 5, 8)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ((aten.mm.default, t(4, 6), t(6, 8)), {"S0 R -> S0", "R S1 -> S1", "S1 S0 -> P"}),
        ((aten.add.Tensor, t(4, 6), t(6)), {"S0 R -> S0", "S1 S0 -> S1"}),
        ((aten.mul.Tensor, t(4, 1), t(4, 6)), {"S0 S0 -> S0", "R S1 -> S1"}),
        ((aten.sum.dim_IntList, t(4, 6), [1]), {"S0 -> S0", "S1 -> P"}),
        ((aten.sum.dim_IntList, t(4, 6), [1], True), {"S0 -> S0", "S1 -> P"}),
        ((aten.sum.default, t(4, 6)), {"S0 -> P", "S1 -> P"}),
        ((aten.amax.default, t(4, 6), [1]), {"S0 -> S0"}),
        ((aten._softmax.default, t(4, 6), 1, False), {"S0 -> S0"}),
        ((aten.cumsum.default, t(4, 6), 0), {"S1 -> S1"}),
        ((aten.topk.default, t(4, 6), 2, 1), {"S0 -> S0 S0"}),
        ((aten.gather.default, t(4, 6), 1, torch.zeros(4, 2, dtype=torch.int64)), {"S0 S0 -> S0"}),
        ((aten.cat.default, [t(4, 6), t(4, 2)], 1), {"S0 S0 -> S0"}),
        ((aten.slice_backward.default, t(4, 2), [4, 6], 1, 0, 2, 1), {"S0 -> S0"}),
        ((aten.embedding.default, t(8, 6), IDS), {"R S0 -> S0", "R S1 -> S1", "S1 R -> S2"}),
        (
            (aten.embedding_dense_backward.default, t(2, 3, 6), IDS, 8, -1, False),
            {"S0 S0 -> P", "S1 S1 -> P", "S2 R -> S1"},
        ),
        ((aten.native_layer_norm.default, t(4, 6), [6], t(6), t(6), 1e-5), {"S0 R R -> S0 S0 S0"}),
        (
            (
                aten.native_layer_norm_backward.default,
                t(4, 6),
                t(4, 6),
                [6],
                t(4, 1),
                t(4, 1),
                t(6),
                t(6),
                [True, True, True],
            ),
            {"S0 S0 S0 S0 R R -> S0 P P"},
        ),
        (
            (aten.native_group_norm.default, IMAGE, t(4), t(4), 2, 4, 64, 2, 1e-5),
            {"S0 R R -> S0 S0 S0"},
        ),
        (
            (aten.convolution.default, IMAGE, t(6, 4, 3, 3), None, [2, 2], [1, 1], [1, 1], False, [0, 0], 1),
            {"S0 R -> S0", "R S0 -> S1", "S1 S1 -> P"},
        ),
        (
            (aten.convolution.default, IMAGE, t(4, 6, 3, 3), None, [1, 1], [1, 1], [1, 1], True, [0, 0], 1),
            {"S0 R -> S0", "R S1 -> S1", "S1 S0 -> P"},
        ),
        (
            (aten.convolution.default, IMAGE, t(4, 1, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 4),
            {"S0 R -> S0"},
        ),
        ((aten.max_pool2d_with_indices.default, IMAGE, [2, 2]), {"S0 -> S0 S0", "S1 -> S1 S1"}),
        (
            (aten._scaled_dot_product_flash_attention_for_cpu.default, HEADS, HEADS, HEADS, 0.0, True),
            {"S0 S0 S0 -> S0 S0", "S1 S1 S1 -> S1 S1"},
        ),
        (
            (aten.nll_loss_forward.default, t(4, 6), torch.tensor([0, 1, 2, 3]), None, 2, -100),
            {"S0 S0 -> P P"},
        ),
        (
            (aten.nll_loss_backward.default, t(), t(4, 6), torch.tensor([0, 1, 2, 3]), None, 1, -100, t()),
            {"R S0 S0 R -> S0"},
        ),
        ((aten.new_zeros.default, t(4, 6), [2, 3]), {"R -> S0", "R -> S1"}),
        ((aten.full.default, [2, 3], 1.0), {" -> S0", " -> S1"}),
        ((aten.index.Tensor, t(4, 6), [None, torch.tensor([0, 2])]), {"S0 R -> S0"}),
        ((aten.tril.default, t(4, 6, 6)), {"S0 -> S0"}),
        ((aten.native_dropout.default, t(4, 6), 0.5, True), {"S0 -> S0 S0", "S1 -> S1 S1"}),
    ],
    ids=lambda value: str(value[0]) if isinstance(value, tuple) else "",
)
def test_what_calls_are_split_along(call: tuple[Any, ...], expected: set[str]) -> None:
    found = admitted(*call)
    assert not found.reason
    assert words(found) == expected


@pytest.mark.parametrize(
    "call",
    [
        (aten.nll_loss_forward.default, t(8, 1), torch.zeros(8, dtype=torch.int64), None, 2, -100),
        (aten.gather.default, t(8, 1), 1, torch.zeros(8, 6, dtype=torch.int64)),
    ],
    ids=lambda call: str(call[0]),
)
def test_a_dimension_of_one_has_position_zero_only(call: tuple[Any, ...]) -> None:
    """Another would end the process on a GPU."""
    found = admitted(*call)
    assert not found.reason and found.strategies


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ((aten.histc.default, t(6)), "has no formula"),
        ((aten.arange.default, 8), ""),
        ((aten._assert_async.msg, t().bool(), "is so"), ""),
        ((aten.randn.default, [4, 6]), "draws random numbers"),
        ((aten.sort.default, t(6)), ""),
    ],
)
def test_what_runs_whole_says_why(call: tuple[Any, ...], reason: str) -> None:
    found = admitted(*call)
    assert found.strategies == ()
    assert found.reason == reason


def test_batch_norm_of_a_share_is_refuted_by_its_kernel() -> None:
    """The rule says channels alone; were it to say samples too, the trial would find out."""
    found = admitted(aten.native_batch_norm.default, IMAGE, t(4), t(4), None, None, True, 0.1, 1e-5)
    assert words(found) == {"S1 S0 S0 -> S1 S0 S0"}
