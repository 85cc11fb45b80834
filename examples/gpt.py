"""A GPT, and the factories that ``loadmaster capture examples.gpt:small`` calls.

A factory returns ``(model, batch, loss)``: the last input is the target, and one training step computes
``loss(model(*inputs[:-1]), inputs[-1])``. Yours can live in any module of your own.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Example = tuple[nn.Module, tuple[Tensor, ...], Callable[[Tensor, Tensor], Tensor]]


class Block(nn.Module):
    """Causal self-attention and a two-layer perceptron, each behind a LayerNorm and beside a shortcut."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def attention(self, x: Tensor) -> Tensor:
        """[batch, tokens, width], mixed over earlier tokens."""
        batch, tokens, width = x.shape
        heads = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.project(mixed.transpose(1, 2).reshape(batch, tokens, width))

    def forward(self, x: Tensor) -> Tensor:
        """[batch, tokens, width] to the same shape."""
        x = x + F.dropout(self.attention(self.norm1(x)), self.dropout, self.training)
        hidden = F.gelu(self.expand(self.norm2(x)))
        return x + F.dropout(self.contract(hidden), self.dropout, self.training)


class GPT(nn.Module):
    """Token and position embeddings, ``layers`` blocks, and a head that shares the token embedding.

    Args:
        vocabulary: number of distinct tokens.
        context: the longest sequence.
        layers, width, heads: of the blocks.
        dropout: probability of dropping an element after each half of a block.
    """

    def __init__(
        self, vocabulary: int, context: int, layers: int, width: int, heads: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [batch, length] to the scores of each next token [batch, length, vocabulary]."""
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def next_token_loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of scores [batch, length, vocabulary] against targets [batch, length]."""
    return F.cross_entropy(scores.flatten(0, 1).float(), targets.flatten())


def gpt(batch: int, length: int, vocabulary: int, layers: int, width: int, heads: int, dropout: float = 0.0) -> Example:
    """A GPT on ``batch`` random sequences of ``length`` tokens."""
    model = GPT(vocabulary, length, layers, width, heads, dropout)
    inputs = tuple(torch.randint(vocabulary, (batch, length)) for _ in range(2))
    return model, inputs, next_token_loss


def small() -> Example:
    """Four layers of width 128: a step takes about a second on a laptop."""
    return gpt(batch=8, length=128, vocabulary=2048, layers=4, width=128, heads=4, dropout=0.1)


def gpt2_medium(batch: int = 32) -> Example:
    """GPT-2-medium: 24 layers of width 1024, sequences of 1024 tokens."""
    return gpt(batch=batch, length=1024, vocabulary=50_304, layers=24, width=1024, heads=16)
