"""Masks of nn.Transformer: a step with them is one graph, and computes what plain PyTorch computes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.modules import transformer

from tests.executor.memory.plain_gradients import expect_plain_gradients

LENGTH = 6
CAUSAL = nn.Transformer.generate_square_subsequent_mask(LENGTH)
WINDOW = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(2)
LOOKS = transformer._detect_is_causal_mask


class Encoder(nn.Module):
    """With a mask of its own."""

    def __init__(self, mask, **said) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.layers, self.said = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), said
        self.register_buffer("mask", mask)

    def forward(self, x):
        return self.layers(x, mask=self.mask, **self.said)


class Translator(nn.Module):
    """Makes its mask in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Transformer(16, 2, 1, 1, 32, dropout=0.0, batch_first=True)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.layers(x, x.flip(1), tgt_mask=mask, tgt_key_padding_mask=x[..., 0] > 1.5)


MODELS = {
    "causal": lambda: Encoder(CAUSAL),
    "another": lambda: Encoder(WINDOW),
    "said": lambda: Encoder(CAUSAL, is_causal=True),
    "made and padded": Translator,
}


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_plain_pytorch(name):
    torch.manual_seed(0)
    batch = (torch.randn(3, LENGTH, 16), torch.randn(3, LENGTH, 16))
    expect_plain_gradients(MODELS[name](), batch, nn.MSELoss())
    assert transformer._detect_is_causal_mask is LOOKS
