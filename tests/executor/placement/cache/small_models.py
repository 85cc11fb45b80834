"""Small models whose saved tensors are of every sort, and their gradients with and without a cache."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from loadmaster.executor import TensorCache
from loadmaster.executor.placement.cache.backends.files import Files
from loadmaster.executor.placement.cache.backends.protocol import Backend

LEAST = 512  # bytes: the tensors of these models are small


class Block(nn.Module):
    """A transformer's: queries, keys and values are views of one storage, and so is its residual stream."""

    def __init__(self, width: int = 16, *, reentrant: bool | None = None) -> None:
        super().__init__()
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.register_buffer("scale", torch.full((width,), 0.5))
        self.reentrant = reentrant

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.mixed(self.norms[0](x)).chunk(3, dim=-1)
        )
        return x + self.out(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(-2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.reentrant is None:
            x = self.attend(x)
        else:
            x = checkpoint(self.attend, x, use_reentrant=self.reentrant)
        return x + self.narrow(F.gelu(self.wide(self.norms[1](x)))) * self.scale


def blocks(count: int = 3, *, reentrant: bool | None = None) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Block(reentrant=reentrant) for _ in range(count)))


def batch(seed: int = 0) -> torch.Tensor:
    return torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(seed))


def gradients(
    model: nn.Module, cache: TensorCache | None = None, loss: Callable[[], torch.Tensor] | None = None
) -> list[torch.Tensor]:
    """Of one step."""
    model.zero_grad()
    with cache or contextlib.nullcontext():
        (loss() if loss is not None else model(batch()).square().mean()).backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def expect_equal(ours: list[torch.Tensor], plain: list[torch.Tensor]) -> None:
    """To the last bit, also where both are no numbers."""
    assert len(ours) == len(plain)
    assert all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in zip(ours, plain, strict=True))


def small_files(folder: object, *more: object, threads: int = 1) -> Backend:
    """Files cut into chunks that these models fill."""
    return Files([str(f) for f in (folder, *more)], threads=threads, chunk_bytes=4096)
