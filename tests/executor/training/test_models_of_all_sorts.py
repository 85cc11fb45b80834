"""Models as users write them train under a plan as in plain PyTorch, or are refused before any weight changes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.checkpoint import checkpoint

from loadmaster.errors import InputError
from loadmaster.executor.training.capture import expect_layers
from loadmaster.executor.training.step import TrainingStep
from loadmaster.models.training.ways import TRAINED, Way
from tests.executor.training.planned_nets import RESIDENT, STREAMED, problem_of, schedule_of
from tests.executor.training.side_by_side import STEPS, small_layers_of

WIDTH = 8


class Blocks(nn.Module):
    """A model with three blocks. Returns the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3))
        self.last = nn.Linear(WIDTH, WIDTH)
        self.calls = 0

    def run(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.last(self.run(self.first(x))).square().mean()


class Spectral(Blocks):
    """Blocks whose forward pass reads buffers that it has changed."""

    def __init__(self) -> None:
        super().__init__()
        for block in self.blocks:
            spectral_norm(block[0])


class Smoothed(nn.Module):
    """A block that puts another tensor in its buffer's place."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.5 * self.mean + x.detach().mean(0)
        return self.linear(x - self.mean)


class Averages(Blocks):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Smoothed() for _ in range(3))


class Checkpointed(Blocks):
    """A model with its own checkpointing."""

    def run(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return x


class Skipping(Blocks):
    """Another block is left out in each step, the last one too."""

    def run(self, x: Tensor) -> Tensor:
        for number, block in enumerate(self.blocks):
            if number != self.calls % 3:
                x = x + block(x)
        return x


class Scaled(Blocks):
    """Parameters without dimensions, or without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.nothing = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.zeros(0, 4))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale + self.nothing.sum()


class Complex(Blocks):
    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward((x.to(torch.complex64) @ self.turn).abs())


class Double(Blocks):
    def __init__(self) -> None:
        super().__init__()
        self.last.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.run(self.first(x)).double()).square().mean()


def planned(
    model: nn.Module, optimizer: torch.optim.Optimizer, ways: Sequence[Way], clip: float | None
) -> TrainingStep:
    layers = small_layers_of(model, optimizer)
    problem = problem_of(layers, clips=clip is not None)
    schedule = schedule_of(problem, *ways)
    return TrainingStep(model, None, layers, problem, schedule, optimizer, torch.device("cpu"), max_norm=clip)


@pytest.mark.parametrize("ways", [TRAINED, (STREAMED,)], ids=["mixed", "streamed"])
@pytest.mark.parametrize("make", [Spectral, Averages, Checkpointed, Skipping, Scaled, Complex, Double])
def test_it_trains_as_in_plain_pytorch(make: Callable[[], Blocks], ways: tuple[Way, ...]) -> None:
    torch.manual_seed(0)
    plain, clip = make(), 0.1
    model = copy.deepcopy(plain)
    optimizers = [torch.optim.Adam(m.parameters(), 1e-2) for m in (plain, model)]
    step = planned(model, optimizers[1], ways, clip)
    for _ in range(STEPS):
        batch = torch.randn(4, WIDTH)
        expected, found = plain(batch), step(batch)
        torch.testing.assert_close(found, expected)
        expected.backward()
        nn.utils.clip_grad_norm_(plain.parameters(), clip)
        found.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    torch.testing.assert_close(model.state_dict(), plain.state_dict())
    torch.testing.assert_close(optimizers[1].state_dict()["state"], optimizers[0].state_dict()["state"])


class Backwards(Blocks):
    """Blocks that run in another order than that of their list."""

    def run(self, x: Tensor) -> Tensor:
        for block in reversed(self.blocks):
            x = x + block(x)
        return x


class Again(Blocks):
    def run(self, x: Tensor) -> Tensor:
        return super().run(super().run(x))


class Steep(Blocks):
    """The gradient of the input is a part of the loss."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.requires_grad_()
        loss = super().forward(x)
        (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
        return loss + gradient.square().mean()


class Small(Blocks):
    """Weights that a penalty reads where their layers do not run."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + sum(p.square().sum() for p in self.parameters())


@pytest.mark.parametrize(
    ("make", "way", "words"),
    [
        (Backwards, RESIDENT, "after a later one"),
        (Again, STREAMED, "after a later one"),
        (Steep, RESIDENT, "within the forward pass"),
        (Small, STREAMED, "weight_decay"),
    ],
)
def test_what_would_train_otherwise_is_refused_before(make: Callable[[], Blocks], way: Way, words: str) -> None:
    torch.manual_seed(0)
    model = make()
    before = copy.deepcopy(model.state_dict())
    step = planned(model, torch.optim.Adam(model.parameters()), [way], None)
    with pytest.raises(InputError, match=words):
        step(torch.randn(4, WIDTH))
    torch.testing.assert_close(model.state_dict(), before)
    step.release()


def sparse(model: Blocks) -> Any:
    model.words = nn.Embedding(5, WIDTH, sparse=True)


def repeated(model: Blocks) -> Any:
    model.blocks[2] = model.blocks[0]


def nested(model: Blocks) -> Any:
    model.blocks[2] = nn.Sequential(model.blocks[0])


@pytest.mark.parametrize(
    ("change", "words"), [(sparse, "sparse=False"), (repeated, "more than once"), (nested, "more than once")]
)
def test_what_has_no_layers_is_refused(change: Callable[[Blocks], Any], words: str) -> None:
    model = Blocks()
    change(model)
    with pytest.raises(InputError, match=words):
        expect_layers(model, torch.optim.SGD(model.parameters(), 0.1), list(model.blocks))
