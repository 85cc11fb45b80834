"""Masks that keep attention from PyTorch's fused kernels are laid out anew, and all numbers stay."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from loadmaster.executor.steps.one_graph.dynamo_changes import lay_out_masks
from tests.executor.memory.tracing import trace

BATCH, HEADS, KEYS, WIDTH = 3, 2, 16, 8
SQUARE = torch.rand(KEYS, KEYS, generator=torch.Generator().manual_seed(1))
EACH_HEAD = torch.rand(KEYS, KEYS, HEADS, generator=torch.Generator().manual_seed(2))

LAID_OUT = {
    "transposed, one for the batch": lambda: (SQUARE > 0.1).t().expand(BATCH, 1, KEYS, KEYS),
    "expanded along the keys": lambda: SQUARE[:, :1].expand(KEYS, KEYS),
    "heads last, as in T5": lambda: EACH_HEAD.permute(2, 0, 1).unsqueeze(0),
}
AS_THEY_ARE = {
    "one for the batch": lambda: SQUARE.expand(BATCH, 1, KEYS, KEYS),
    "one for all queries": lambda: SQUARE[:1].expand(KEYS, KEYS),
    "none": lambda: None,
}


class Attention(nn.Module):
    """One layer, whose mask is an argument with a name or without."""

    def __init__(self, mask, *, named: bool = True) -> None:
        super().__init__()
        self.project = nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH)
        self.mask, self.named = mask, named

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.project(x).view(BATCH, KEYS, 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4)
        mask = self.mask()
        if self.named:
            return scaled_dot_product_attention(query, key, value, attn_mask=mask).square().mean()
        return scaled_dot_product_attention(query, key, value, mask, 0.0).square().mean()


class Learned(nn.Module):
    """A mask that is trained, the same for the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.by_head = nn.Parameter(EACH_HEAD.clone())
        self.attention = Attention(lambda: self.by_head.permute(2, 0, 1).expand(BATCH, HEADS, KEYS, KEYS))

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x)


def example():
    return torch.randn(BATCH, KEYS, HEADS * WIDTH, generator=torch.Generator().manual_seed(0), requires_grad=True)


def gradients(call, model):
    x = example()
    model.zero_grad()
    call(x).backward()
    return [x.grad, *(p.grad.clone() for p in model.parameters())]


def operators_of(model):
    return [str(node.target) for node in trace(model, (example(),)).module.graph.nodes]


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("mask", LAID_OUT)
def test_no_scores_are_held(mask, named):
    operators = operators_of(Attention(LAID_OUT[mask], named=named))
    assert any("scaled_dot_product_flash_attention" in name for name in operators)
    assert not any("softmax" in name for name in operators)


def laid_out(model, added):
    """The model compiled; ``added`` collects how many nodes its graph gains."""

    def backend(module, _inputs):
        before = len(module.graph.nodes)
        lay_out_masks(module)
        added.append(len(module.graph.nodes) - before)
        return module

    return torch.compile(model, backend=backend, fullgraph=True)


@pytest.mark.parametrize("mask", AS_THEY_ARE)
def test_other_masks_are_left_where_they_are(mask):
    added: list[int] = []
    laid_out(Attention(AS_THEY_ARE[mask]), added)(example())
    assert added == [0]


@pytest.mark.parametrize(
    "model", [*(Attention(mask) for mask in LAID_OUT.values()), Learned()], ids=[*LAID_OUT, "learned"]
)
def test_numbers_stay(model):
    added: list[int] = []
    expected, found = gradients(model, model), gradients(laid_out(model, added), model)
    assert added[0] > 0
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_batches_of_any_size_are_laid_out():
    """With sizes that are no numbers to the compiler."""

    def call(query, mask):
        return scaled_dot_product_attention(query, query, query, mask.t())

    def backend(module, _inputs):
        lay_out_masks(module)
        assert module.graph.find_nodes(op="call_method", target="contiguous")
        return module

    compiled = torch.compile(call, backend=backend, dynamic=True, fullgraph=True)
    for keys in (4, 6):
        query, mask = torch.randn(2, keys, 8), torch.rand(keys, keys)
        torch.testing.assert_close(compiled(query, mask), call(query, mask))
