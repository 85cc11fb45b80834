"""Models that keep tensors from their step: computed weights, states, losses of parts, maps of attention."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from loadmaster.errors import InputError
from loadmaster.executor import apply, capture, measure
from loadmaster.models.memory.checker import check
from loadmaster.models.memory.problem import MemoryProblem
from tests.executor.memory.schedules import plan, schedule

Normalize = Callable[[nn.Module], nn.Module]


class Critic(nn.Module):
    """Its weights are computed at every call, and put where ``forward`` looks for them."""

    def __init__(self, normalize: Normalize) -> None:
        super().__init__()
        layers = [normalize(nn.Conv2d(3, 8, 3)), nn.LeakyReLU(), normalize(nn.Conv2d(8, 8, 3)), nn.Tanh()]
        self.layers = nn.Sequential(*layers, nn.Flatten(), normalize(nn.Linear(8 * 12 * 12, 1)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).square().mean()

    def kept(self) -> list[Tensor]:
        return [layer.weight for layer in self.layers if hasattr(layer, "weight")]


class Keeping(nn.Module):
    """What ``keep`` puts into it."""

    def __init__(self, keep: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 1)
        self.keep = keep
        self.state: Any = torch.zeros(4, 8)
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.keep(self, self.first(x).tanh())).square().mean()

    def kept(self) -> list[Tensor]:
        return [self.mean, *(self.state if isinstance(self.state, list) else [self.state])]


def state(model: Any, h: Tensor) -> Tensor:
    model.state = (h + model.state.detach()).sin()
    return model.state


def detached(model: Any, h: Tensor) -> Tensor:
    model.state = h.detach()
    return h + model.state


def part_of_the_loss(model: Any, h: Tensor) -> Tensor:
    model.state = h.square().mean()
    return h + 0.1 * model.state


def views(model: Any, h: Tensor) -> Tensor:
    h = h.exp()
    model.state = [h, h[:2], h.T]
    return h


def buffer(model: Any, h: Tensor) -> Tensor:
    model.mean = 0.9 * model.mean + 0.1 * h.detach().mean(0)
    return h - model.mean


def weights(make: Normalize) -> tuple[nn.Module, Tensor]:
    return Critic(make), torch.randn(4, 3, 16, 16)


def keeping(keep: Callable[[Any, Tensor], Tensor]) -> tuple[nn.Module, Tensor]:
    return Keeping(keep), torch.randn(4, 8)


CASES: dict[str, Callable[[], tuple[Any, Tensor]]] = {
    "spectral norm": lambda: weights(nn.utils.spectral_norm),
    "weight norm": lambda: weights(nn.utils.weight_norm),
    "state": lambda: keeping(state),
    "detached": lambda: keeping(detached),
    "part of the loss": lambda: keeping(part_of_the_loss),
    "views": lambda: keeping(views),
    "buffer": lambda: keeping(buffer),
}


@cache
def problem_of(name: str, backend: Any) -> MemoryProblem:
    torch.manual_seed(0)
    model, x = CASES[name]()
    return capture(model, (x,), hardware="cpu", backend=backend)


def expect_plain_steps(name: str, *, keeps: bool, backend: Any) -> None:
    """Three steps of training, the gradients and what is kept, beside those without a plan."""
    torch.manual_seed(0)
    model, x = CASES[name]()
    torch.manual_seed(0)
    twin, _ = CASES[name]()  # tensors with a gradient cannot be copied
    near = {} if backend == "eager" else {"rtol": 1e-4, "atol": 1e-5}
    problem = problem_of(name, backend)
    step = apply(plan(problem, schedule(problem, lambda i: keeps)), model, backend=backend)
    for n in range(3):
        step(x + n).backward()
        twin(x + n).backward()
        torch.testing.assert_close([p.grad for p in model.parameters()], [p.grad for p in twin.parameters()], **near)
        torch.testing.assert_close(model.kept(), twin.kept(), **near)
        assert [k.requires_grad for k in model.kept()] == [k.requires_grad for k in twin.kept()]
        with torch.no_grad():
            for p in (*model.parameters(), *twin.parameters()):
                p -= 0.1 * p.grad
                p.grad = None


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("keeps", [True, False], ids=["all kept", "all computed again"])
@pytest.mark.parametrize("name", CASES)
def test_three_steps_are_those_without_a_plan(name: str, keeps: bool) -> None:
    expect_plain_steps(name, keeps=keeps, backend="eager")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["spectral norm", "state"])
def test_three_compiled_steps_are_those_without_a_plan(name: str) -> None:
    expect_plain_steps(name, keeps=False, backend="inductor")


def test_a_gradient_of_what_is_kept_is_refused() -> None:
    model, x = keeping(part_of_the_loss)
    problem = capture(model, (x,), hardware="cpu", backend="eager")
    step = apply(plan(problem, schedule(problem, lambda i: True)), model, backend="eager")
    loss = step(x) + model.state
    with pytest.raises(InputError, match=r"loss: reads tensors .* Add them to the loss inside the step"):
        loss.backward()
    step(x).backward()
    assert all(p.grad is not None for p in model.parameters())


def test_the_planned_peak_holds_what_is_kept_twice() -> None:
    class Map(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k = nn.Linear(32, 32), nn.Linear(32, 32)
            self.map: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            self.map = (self.q(x) @ self.k(x).transpose(1, 2)).softmax(-1)
            return (self.map @ x).square().mean()

    model, x = Map(), torch.randn(4, 256, 32)
    problem = capture(model, (x,), hardware="cpu", backend="eager")
    chosen = schedule(problem, lambda i: False)
    step = apply(plan(problem, chosen), model, backend="eager")

    def run() -> None:
        step(x).backward()
        model.zero_grad()

    measured = measure(run, resident=[*model.parameters(), x], warmup=2, repeats=0)
    assert measured.peak_bytes <= 1.001 * check(problem, chosen, 1 << 50).peak_bytes


def test_a_loss_function_that_keeps_tensors() -> None:
    class Criterion(nn.Module):
        last: Tensor

        def forward(self, found: Tensor, target: Tensor) -> Tensor:
            self.last = F.mse_loss(found, target)
            return 2.0 * self.last

    model, criterion, batch = nn.Linear(8, 1), Criterion(), (torch.randn(4, 8), torch.randn(4, 1))
    problem = capture(model, batch, criterion, hardware="cpu", backend="eager")
    loss = apply(plan(problem, schedule(problem, lambda i: True)), model, criterion, backend="eager")(*batch)
    torch.testing.assert_close(2.0 * criterion.last, loss)
