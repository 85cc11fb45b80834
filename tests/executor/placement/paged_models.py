"""Small models that are trained with and without a pager, and what they come to."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from loadmaster.executor import Pager
from loadmaster.executor.placement.pager.steps import StepStats

WIDTH, ROWS, SMALL = 64, 48, 1024
Optimize = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class Mixer(nn.Module):
    """Layers with views, shortcuts, statistics, writes in place and a tied head."""

    def __init__(self, layers: int = 4, *, checkpointed: bool = False, statistics: bool = True) -> None:
        super().__init__()
        self.table = nn.Embedding(96, WIDTH)
        self.wide = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(layers))
        self.narrow = nn.ModuleList(nn.Linear(3 * WIDTH, WIDTH) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(layers))
        self.statistics = nn.BatchNorm1d(WIDTH) if statistics else nn.Identity()
        self.head = nn.Linear(WIDTH, 96, bias=False)
        self.head.weight = self.table.weight
        self.checkpointed = checkpointed

    def layer(self, n: int, x: Tensor) -> Tensor:
        left, middle, right = self.wide[n](self.norms[n](x)).chunk(3, dim=-1)
        mixed = torch.cat([left * middle.sigmoid(), F.gelu(right), middle], dim=-1)
        return x + self.narrow[n](mixed.relu_())

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        for n in range(len(self.wide)):
            x = checkpoint(self.layer, n, x, use_reentrant=False) if self.checkpointed else self.layer(n, x)
        return self.head(self.statistics(x))


@dataclass(frozen=True)
class Case:
    """A training: one loss for each step, and the parameters, statistics and optimizer state at the end."""

    optimize: Optimize = lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True)
    checkpointed: bool = False
    micro_batches: int = 1
    clip: float | None = None
    keep_gradients: bool = False
    rows: Sequence[int] = (ROWS,)
    device: str = "cpu"

    def made(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = Mixer(checkpointed=self.checkpointed).to(self.device)
        return model, self.optimize(list(model.parameters()))

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, n: int) -> float:
        optimizer.zero_grad(set_to_none=not self.keep_gradients)
        rows = self.rows[n % len(self.rows)]
        generator = torch.Generator().manual_seed(n)
        for _ in range(self.micro_batches):
            tokens = torch.randint(96, (rows,), generator=generator).to(self.device)
            loss = F.cross_entropy(model(tokens), tokens.roll(1))
            loss.backward()
        if self.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), self.clip, foreach=True)
        optimizer.step()
        return loss.item()


@dataclass(frozen=True)
class Trained:
    """What a training came to."""

    losses: list[float]
    state: list[Tensor]
    stats: list[StepStats]
    pager: Pager | None

    def equals(self, other: Trained) -> bool:
        same = all(torch.equal(one, two) for one, two in zip(self.state, other.state, strict=True))
        return same and self.losses == other.losses


def train(case: Case, steps: int, budget_bytes: int | None = None, **options: object) -> Trained:
    """Some steps, under a pager where there is a budget."""
    model, optimizer = case.made()
    pager = None
    within: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if budget_bytes is not None:
        within = pager = Pager(model, optimizer, budget_bytes=budget_bytes, small_bytes=SMALL, **options)  # type: ignore[arg-type]
    with within:
        losses = [case.step(model, optimizer, n) for n in range(steps)]
    state = [t.detach().clone() for t in (*model.parameters(), *model.buffers())]
    for held in optimizer.state.values():
        state += [value.clone() for value in held.values() if isinstance(value, Tensor)]
    return Trained(losses, state, [] if pager is None else pager.stats, pager)


@cache
def trained_plainly(case: Case, steps: int) -> Trained:
    """The same steps without a pager, trained once for all that are held against them."""
    return train(case, steps)


@cache
def trained_by_demand(case: Case, steps: int, budget_bytes: int) -> Trained:
    """Under a pager that foresees nothing."""
    return train(case, steps, budget_bytes, prefetch=None)


@cache
def peak_bytes(case: Case, steps: int = 3) -> int:
    """What a step takes if nothing leaves, in the pager's own account."""
    return train(case, steps, 1 << 40).stats[-1].peak_bytes
