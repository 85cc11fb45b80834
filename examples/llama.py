"""A Llama-like language model: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

A factory returns ``(model, batch, loss)``: ``loadmaster capture examples.llama:small`` calls it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Example = tuple[nn.Module, tuple[Tensor, ...], Callable[[Tensor, Tensor], Tensor]]

EPSILON = 1e-5
ROTARY_BASE = 500_000.0


def rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn the pairs (i, i + d/2) of each head of x [batch, heads, length, d] by their position's angle."""
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat((-second, first), -1) * sine


class Block(nn.Module):
    """Causal attention and SwiGLU, each behind an RMSNorm and beside a shortcut.

    Args:
        width, heads: of the attention.
        groups: heads of keys and values; each serves ``heads / groups`` heads of queries.
        hidden: width inside the SwiGLU.
    """

    def __init__(self, width: int, heads: int, groups: int, hidden: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.norm1, self.norm2 = nn.RMSNorm(width, EPSILON), nn.RMSNorm(width, EPSILON)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, groups * self.size, bias=False)
        self.value = nn.Linear(width, groups * self.size, bias=False)
        self.project = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def attention(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """[batch, length, width] to the same; no token looks at a later one."""
        batch, length, _ = x.shape
        query = self.query(x).view(batch, length, self.heads, self.size).transpose(1, 2)
        key = self.key(x).view(batch, length, self.groups, self.size).transpose(1, 2)
        value = self.value(x).view(batch, length, self.groups, self.size).transpose(1, 2)
        query, key = (rotated(t, cosine, sine).to(value.dtype) for t in (query, key))
        shared = self.heads // self.groups
        key, value = (t.repeat_interleave(shared, 1) for t in (key, value))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.project(mixed.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """[batch, length, width] to the same."""
        x = x + self.attention(self.norm1(x), cosine, sine)
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Embeddings, ``layers`` blocks, and a head that shares the embedding.

    Args:
        vocabulary: number of distinct tokens.
        context: the longest sequence.
        layers: number of blocks; the other sizes are those of :class:`Block`.
    """

    cosine: Tensor
    sine: Tensor

    def __init__(
        self, vocabulary: int, context: int, layers: int, width: int, heads: int, groups: int, hidden: int
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads, groups, hidden) for _ in range(layers))
        self.norm = nn.RMSNorm(width, EPSILON)
        self.head = nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.head.weight = self.tokens.weight
        size = width // heads
        rates = ROTARY_BASE ** (-torch.arange(0, size, 2) / size)
        angles = torch.arange(context)[:, None] * torch.cat((rates, rates))[None]
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [batch, length] to the scores of each next token [batch, length, vocabulary]."""
        length = tokens.shape[1]
        cosine, sine = self.cosine[:length], self.sine[:length]
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x, cosine, sine)
        return self.head(self.norm(x))


def next_token_loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of scores [batch, length, vocabulary] against targets [batch, length]."""
    return F.cross_entropy(scores.flatten(0, 1).float(), targets.flatten())


def llama(
    batch: int, length: int, vocabulary: int, layers: int, width: int, heads: int, groups: int, hidden: int
) -> Example:
    """A Llama on ``batch`` random sequences of ``length`` tokens."""
    model = Llama(vocabulary, length, layers, width, heads, groups, hidden)
    inputs = tuple(torch.randint(vocabulary, (batch, length)) for _ in range(2))
    return model, inputs, next_token_loss


def small() -> Example:
    """Two blocks of width 64."""
    return llama(batch=2, length=32, vocabulary=256, layers=2, width=64, heads=4, groups=2, hidden=128)


def full() -> Example:
    """1.2 billion parameters: 16 blocks of width 2048, four sequences of 2048 tokens."""
    return llama(batch=4, length=2048, vocabulary=128_256, layers=16, width=2048, heads=32, groups=8, hidden=8192)
