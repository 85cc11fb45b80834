"""What is said of attention written out, and of products with rows that libraries are slow for."""

from __future__ import annotations

import logging
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from loadmaster.executor.memory.capture import capture
from loadmaster.executor.memory.operators.advice import advice
from tests.executor.memory.tracing import trace


class Attention(nn.Module):
    """Self-attention, as ``how`` says."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.qkv = nn.Linear(32, 96)
        self.bias = nn.Parameter(torch.zeros(4, 128, 128)) if how == "biased" else None

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (y.unflatten(-1, (4, 8)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        if self.how == "fused":
            return F.scaled_dot_product_attention(query, key, value).mean()
        if self.how == "biased":
            return F.scaled_dot_product_attention(query, key, value, self.bias).mean()
        if self.how == "einsum":
            return torch.einsum(
                "bhqk,bhkc->bhqc", torch.einsum("bhqc,bhkc->bhqk", query, key).softmax(-1), value
            ).mean()
        scores = query @ key.transpose(-2, -1) / math.sqrt(8)
        if self.how == "gates":  # the backward pass has products on both sides, the forward pass has not
            return (scores.softmax(-1) * (query @ query.transpose(-2, -1))).mean()
        if self.how == "causal":
            scores = scores.masked_fill(torch.ones(128, 128, dtype=torch.bool).triu(1), -math.inf)
        weights = F.dropout(scores.softmax(-1), 0.1) if self.how == "dropout" else scores.softmax(-1)
        return (weights @ value).mean()


class Classifier(nn.Module):
    """A layer of many classes and a loss of its own, which no pass takes apart."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(1024, classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x).square().mean()


@pytest.mark.parametrize("how", ["plain", "causal", "dropout", "einsum"])
def test_attention_written_out_is_named_with_its_place_and_what_its_scores_take(how):
    [sentence] = advice(trace(nn.Sequential(Attention(how)), (torch.empty(64, 128, 32),)), on_gpu=False)
    assert "scaled_dot_product_attention" in sentence
    assert "in 1 place at File" in sentence and "test_advice.py" in sentence
    assert "Its scores take 16 MiB" in sentence  # 64 x 4 x 128 x 128 of four bytes


def test_attention_that_no_kernel_takes_is_named():
    """A bias of positions that is trained, as T5 has it."""
    [sentence] = advice(trace(nn.Sequential(Attention("biased")), (torch.empty(64, 128, 32),)), on_gpu=False)
    assert "scaled_dot_product_attention holds its scores in 1 place at File" in sentence
    assert "they take 16 MiB" in sentence and "sdpa_kernel" in sentence


@pytest.mark.parametrize("how", ["fused", "gates"])
def test_nothing_is_said_of_other_softmaxes(how):
    assert advice(trace(Attention(how), (torch.empty(64, 128, 32),)), on_gpu=True) == []


@pytest.mark.parametrize("how", ["plain", "biased"])
def test_nothing_is_said_of_small_scores(how):
    assert advice(trace(nn.Sequential(Attention(how)), (torch.empty(3, 128, 32),)), on_gpu=True) == []


def step(classes: int, dtype: torch.dtype, rows: int = 8192):
    return Classifier(classes).to(dtype), (torch.empty(rows, 1024, dtype=dtype),)


@pytest.mark.parametrize(
    ("classes", "dtype", "better"), [(50_257, torch.bfloat16, "50,264"), (5_003, torch.float32, "5,004")]
)
def test_odd_rows_of_large_products_are_named_with_a_better_size(classes, dtype, better):
    step_graph = trace(*step(classes, dtype))
    [sentence] = advice(step_graph, on_gpu=True)
    assert f"{classes:,} {str(dtype).removeprefix('torch.')}" in sentence and f"make that size {better}," in sentence
    assert sentence.startswith("2 large matrix products")  # forward, and the weight's gradient; x has none
    assert advice(step_graph, on_gpu=False) == []


@pytest.mark.parametrize(("classes", "rows"), [(50_304, 8192), (5_003, 64)])
def test_nothing_is_said_of_aligned_or_small_products(classes, rows):
    assert advice(trace(*step(classes, torch.bfloat16, rows)), on_gpu=True) == []


def test_capture_says_it_and_goes_on(caplog):
    with caplog.at_level(logging.WARNING):
        problem = capture(Attention("plain"), (torch.empty(64, 128, 32),), hardware="h200")
    assert len(problem.forward) > 0
    assert "scaled_dot_product_attention" in caplog.text
