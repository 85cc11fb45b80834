"""Strategies are run before they are trusted: right ones pass, plausible wrong ones do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from loadmaster.executor.partition.trials import holds
from loadmaster.models.partition.problem import Need, Strategy

aten = torch.ops.aten


def strategy(inputs: str, outputs: str) -> Strategy:
    """``"S0 R -> S0"`` in two words."""
    return Strategy("one", tuple(Need(part) for part in inputs.split()), tuple(outputs.split()))


def t(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


IDS = torch.tensor([[0, 5, 3, 1, 2, 2], [4, 1, 0, 5, 5, 3]] * 3)

Call = tuple[Callable[..., Any], tuple[Any, ...]]
PRODUCT: Call = (aten.mm.default, (t(6, 12), t(12, 18)))
CONVOLUTION: Call = (
    aten.convolution.default,
    (t(6, 6, 5, 5), t(12, 6, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
)
NORM: Call = (aten.native_layer_norm.default, (t(6, 12), [12], t(12), t(12), 1e-5))
ATTENTION: Call = (aten._scaled_dot_product_flash_attention_for_cpu.default, (t(6, 6, 12, 12),) * 3)
EMBEDDING: Call = (aten.embedding.default, (t(6, 12), IDS))


@pytest.mark.parametrize(
    ("call", "inputs", "outputs"),
    [
        (PRODUCT, "S0 R", "S0"),
        (PRODUCT, "R S1", "S1"),
        (PRODUCT, "S1 S0", "P"),
        (PRODUCT, "P R", "P"),
        (CONVOLUTION, "S0 R", "S0"),
        (CONVOLUTION, "R S0", "S1"),
        (CONVOLUTION, "S1 S1", "P"),
        (NORM, "S0 R R", "S0 S0 S0"),
        (ATTENTION, "S0 S0 S0", "S0 S0"),
        (ATTENTION, "S1 S1 S1", "S1 S1"),
        (EMBEDDING, "S1 R", "S2"),
        (EMBEDDING, "R S0", "S0"),
        ((aten.sum.dim_IntList, (t(6, 12), [0])), "S0", "P"),
        ((aten.amax.default, (t(6, 12), [0])), "S1", "S0"),
        ((aten.add.Tensor, (t(6, 12), t(6, 12))), "P P", "P"),
        ((aten.relu.default, (t(6, 12),)), "S1", "S1"),
    ],
)
def test_what_holds(call: Call, inputs: str, outputs: str) -> None:
    assert holds(call[0], call[1], {}, strategy(inputs, outputs))


def test_a_kernel_is_told_how_large_its_share_is() -> None:
    spread: Call = (aten.expand.default, (t(6, 1), [6, 12]))
    assert holds(*spread, {}, strategy("S0", "S0"), told=lambda n: {"size": [6 // n, 12]})
    assert holds(*spread, {}, strategy("R", "S1"), told=lambda n: {"size": [6, 12 // n]})
    assert not holds(*spread, {}, strategy("R", "S1"))


@pytest.mark.parametrize(
    ("call", "inputs", "outputs"),
    [
        (PRODUCT, "S0 S0", "P"),
        (PRODUCT, "P P", "P"),
        (CONVOLUTION, "R S0", "S0"),
        (CONVOLUTION, "S2 R", "S2"),
        (NORM, "S1 S0 S0", "S1 R R"),
        (ATTENTION, "S3 S3 S3", "S3 P"),
        (EMBEDDING, "S0 R", "P"),
        ((aten.mean.dim, (t(6, 12), [0])), "S0", "P"),
        ((aten.relu.default, (t(6, 12),)), "P", "P"),
        ((aten.amax.default, (t(6, 12), [0])), "S0", "P"),
        ((aten._softmax.default, (t(6, 12), 1, False)), "S1", "S1"),
        ((aten.view.default, (t(6, 12), [72])), "S1", "S0"),
        ((aten.cumsum.default, (t(6, 12), 0)), "S0", "S0"),
        ((aten.add.Tensor, (t(6, 12), 1.0)), "P", "P"),
    ],
)
def test_what_does_not(call: Call, inputs: str, outputs: str) -> None:
    assert not holds(call[0], call[1], {}, strategy(inputs, outputs))


def test_shares_that_are_not_equal_and_halos_are_not_admitted() -> None:
    assert not holds(aten.relu.default, (t(5, 4),), {}, strategy("S0", "S0"))
    halo = Strategy("rows", (Need("S2", 1, 1), Need("R")), ("S2",))
    assert not holds(*CONVOLUTION, {}, halo)
    assert not holds(*PRODUCT, {}, strategy("S0", "S0"))
