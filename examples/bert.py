"""A BERT: an encoder of bidirectional attention, trained to fill in masked tokens.

A factory returns ``(model, batch, loss)``: ``loadmaster capture examples.bert:small`` calls it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Example = tuple[nn.Module, tuple[Tensor, ...], Callable[[Tensor, Tensor], Tensor]]

MASKED_SHARE = 0.15
IGNORED = -100


class Layer(nn.Module):
    """Self-attention and a two-layer perceptron, each followed by dropout, the shortcut and a LayerNorm."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def attention(self, x: Tensor) -> Tensor:
        """[batch, length, width] to the same, every token looking at all of them."""
        batch, length, width = x.shape
        heads = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value)
        return self.project(mixed.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, width] to the same."""
        x = self.norm1(x + F.dropout(self.attention(x), self.dropout, self.training))
        hidden = self.contract(F.gelu(self.expand(x)))
        return self.norm2(x + F.dropout(hidden, self.dropout, self.training))


class BERT(nn.Module):
    """Token and position embeddings, ``layers`` layers, and a head that shares the token embedding.

    Args:
        vocabulary: number of distinct tokens.
        context: the longest sequence.
        layers, width, heads: of the encoder.
        dropout: probability of dropping an element of the embeddings and after each half of a layer.
    """

    def __init__(
        self, vocabulary: int, context: int, layers: int, width: int, heads: int, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(Layer(width, heads, dropout) for _ in range(layers))
        self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.head = nn.Linear(width, vocabulary)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [batch, length] to the scores of what each was [batch, length, vocabulary]."""
        x = self.norm(self.tokens(tokens) + self.positions.weight[: tokens.shape[1]])
        x = F.dropout(x, self.dropout, self.training)
        for block in self.blocks:
            x = block(x)
        return self.head(self.transform(x))


def masked_token_loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of scores [batch, length, vocabulary] at the targets [batch, length] that are not ignored."""
    return F.cross_entropy(scores.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED)


def bert(batch: int, length: int, vocabulary: int, layers: int, width: int, heads: int, dropout: float) -> Example:
    """A BERT on ``batch`` random sequences of ``length`` tokens."""
    model = BERT(vocabulary, length, layers, width, heads, dropout)
    tokens = torch.randint(vocabulary, (batch, length))
    targets = tokens.masked_fill(torch.rand(batch, length) > MASKED_SHARE, IGNORED)
    return model, (tokens, targets), masked_token_loss


def small() -> Example:
    """Two layers of width 64."""
    return bert(batch=2, length=32, vocabulary=256, layers=2, width=64, heads=4, dropout=0.1)


def full() -> Example:
    """BERT-large: 24 layers of width 1024, 32 sequences of 512 tokens."""
    return bert(batch=32, length=512, vocabulary=30_522, layers=24, width=1024, heads=16, dropout=0.1)
