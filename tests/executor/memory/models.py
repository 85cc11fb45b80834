"""Small models with what makes graphs hard: skips, BatchNorm, tied weights, views, several results."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Mlp(nn.Module):
    """Linear layers and ReLUs."""

    def __init__(self, width: int = 16, depth: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.relu(layer(x))
        return x


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + x)


class ConvNet(nn.Module):
    """A stem with max-pool, residual blocks with BatchNorm, a classifier."""

    def __init__(self, channels: int = 8, blocks: int = 2) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.blocks = nn.Sequential(*(Residual(channels) for _ in range(blocks)))
        self.head = nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.stem(x)))
        return self.head(self.blocks(x).mean((2, 3)))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads.unbind(0), is_causal=True)
        x = x + F.dropout(self.project(mixed.transpose(1, 2).reshape(batch, tokens, width)), self.dropout)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Embeddings, attention blocks, and a head tied to the embedding; returns the loss itself."""

    def __init__(
        self, vocabulary: int = 64, width: int = 32, layers: int = 2, heads: int = 4, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(1, 128, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.positions[:, : tokens.shape[1]]
        scores = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


def mlp_case(dtype: torch.dtype = torch.float64) -> tuple[nn.Module, tuple[Tensor, ...], object]:
    """Model, batch, loss."""
    torch.manual_seed(0)
    x, y = torch.randn(8, 16, dtype=dtype), torch.randn(8, 16, dtype=dtype)
    return Mlp().to(dtype), (x, y), F.mse_loss


def convnet_case(
    dtype: torch.dtype = torch.float64, batch: int = 4, size: int = 12, channels: int = 8, blocks: int = 2
) -> tuple[nn.Module, tuple[Tensor, ...], object]:
    """Model, batch, loss."""
    torch.manual_seed(0)
    inputs = torch.randn(batch, 3, size, size, dtype=dtype), torch.randint(0, 10, (batch,))
    return ConvNet(channels, blocks).to(dtype), inputs, F.cross_entropy


def transformer_case(
    dtype: torch.dtype = torch.float64, batch: int = 2, tokens: int = 16, dropout: float = 0.0, layers: int = 2
) -> tuple[nn.Module, tuple[Tensor, ...], object]:
    """Model, batch, no loss."""
    torch.manual_seed(0)
    inputs = tuple(torch.randint(0, 64, (batch, tokens)) for _ in range(2))
    return Transformer(dropout=dropout, layers=layers).to(dtype), inputs, None


# For a compiler, which takes its time for every operator.
SMALL = {"small convnet": partial(convnet_case, blocks=1), "small transformer": partial(transformer_case, layers=1)}
