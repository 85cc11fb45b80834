"""Models that take gradients themselves, with ``torch.autograd.grad``: a plan covers these, too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import Unsupported
from torch.autograd import grad
from torch.nn import functional as F

from loadmaster.errors import InputError
from loadmaster.executor import apply, capture, measure
from loadmaster.models.memory.checker import check
from tests.executor.memory.plain_gradients import expect_plain_gradients
from tests.executor.memory.schedules import plan, schedule


def network(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))


class Equation(nn.Module):
    """u'' + u = f, as physics-informed networks are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.u = network(2)

    def forward(self, x: Tensor, f: Tensor) -> Tensor:
        u = self.u(x)
        (first,) = grad(u.sum(), x, create_graph=True)
        (second,) = grad(first.sum(), x, create_graph=True)
        return (second.sum(1, keepdim=True) + u - f).square().mean()


class ForceField(nn.Module):
    """Forces are the slope of an energy, and a part of the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = network(32)

    def forward(self, places: Tensor, forces: Tensor) -> Tensor:
        apart = (places[:, None] - places[None]).square().sum(-1)
        energy = self.energy(torch.exp(-apart)).sum()
        (slope,) = grad(energy, places, create_graph=True)
        return energy.square() + F.mse_loss(-slope, forces)


class Penalty(nn.Module):
    """WGAN-GP's, of a convolutional critic."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.LeakyReLU(0.2), nn.Conv2d(8, 8, 3, stride=2), nn.LeakyReLU(0.2), nn.Flatten()
        )

    def forward(self, x: Tensor, _: Tensor) -> Tensor:
        (slope,) = grad(self.critic(x).square().sum(), x, create_graph=True)
        return (slope.flatten(1).norm(dim=1) - 1).square().mean()


class Adapted(nn.Module):
    """MAML: the loss after a step of gradient descent."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 16), nn.Linear(16, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        weights = list(self.parameters())
        slopes = grad(self.loss(weights, x, y), weights, create_graph=True)
        return self.loss([w - 0.1 * slope for w, slope in zip(weights, slopes, strict=True)], x, y)

    def loss(self, weights: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
        hidden = torch.tanh(F.linear(x, weights[0], weights[1]))
        return F.mse_loss(F.linear(hidden, weights[2], weights[3]), y)


CASES = {
    "equation": (Equation, lambda: (torch.randn(32, 2, requires_grad=True), torch.randn(32, 1))),
    "force field": (ForceField, lambda: (torch.randn(32, 3, requires_grad=True), torch.randn(32, 3))),
    "penalty": (Penalty, lambda: (torch.randn(4, 3, 16, 16, requires_grad=True), torch.zeros(1))),
    "adapted": (Adapted, lambda: (torch.randn(32, 2), torch.randn(32, 1))),
}


@pytest.mark.parametrize("keeps", [True, False], ids=["all kept", "all computed again"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_plain_pytorch(name: str, keeps: bool) -> None:
    torch.manual_seed(0)
    make, inputs = CASES[name]
    model, batch = make(), inputs()
    expect_plain_gradients(model, batch, keep=lambda i: keeps)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["equation", "penalty"])
def test_compiled_gradients_are_those_of_plain_pytorch(name: str) -> None:
    torch.manual_seed(0)
    make, inputs = CASES[name]
    model, batch = make(), inputs()
    expect_plain_gradients(model, batch, keep=lambda i: i % 2 == 0, backend="inductor")


def test_the_planned_peak_is_kept() -> None:
    model, batch = Equation(), (torch.randn(512, 2, requires_grad=True), torch.randn(512, 1))
    problem = capture(model, batch, hardware="cpu", backend="eager")
    for keeps in (True, False):
        chosen = schedule(problem, lambda i, keeps=keeps: keeps)
        step = apply(plan(problem, chosen), model, backend="eager")

        def run(step: nn.Module = step) -> None:
            step(*batch).backward()
            model.zero_grad()
            batch[0].grad = None

        measured = measure(run, resident=[*model.parameters(), *batch], warmup=1, repeats=0)
        assert measured.peak_bytes <= 1.001 * check(problem, chosen, 1 << 50).peak_bytes


class Leaf(nn.Module):
    """The slope of a network at a leaf that is made inside."""

    def __init__(self, make: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.u, self.make = network(2), make

    def forward(self, x: Tensor, f: Tensor) -> Tensor:
        x = self.make(x)
        (slope,) = grad(self.u(x).sum(), x, create_graph=True)
        return (slope.sum(1, keepdim=True) - f).square().mean()


def assigned(x: Tensor) -> Tensor:
    x.requires_grad = True
    return x


LEAVES: dict[str, Callable[[Tensor], Tensor]] = {
    "input": lambda x: x.requires_grad_(True),
    "assigned": assigned,
    "copy": lambda x: x.clone().detach().requires_grad_(),
    "between": lambda x: (0.3 * x + 0.7 * x.flip(0)).requires_grad_(True),
    "created": lambda x: torch.linspace(0, 1, x.numel(), requires_grad=True).view_as(x),
}


def test_what_others_compile_is_refused_as_before() -> None:
    """Before PyTorch 2.13 Dynamo kept the method that followed ``setattr`` first: ours, or its own."""

    def compiled() -> None:
        torch.compiler.reset()
        with pytest.raises(Unsupported, match="requires_grad"):
            torch.compile(lambda x: assigned(x) * 2, backend="eager", fullgraph=True)(torch.ones(3))

    compiled()
    test_a_leaf_that_is_made_inside("assigned")
    compiled()


@pytest.mark.parametrize("name", LEAVES)
def test_a_leaf_that_is_made_inside(name: str) -> None:
    torch.manual_seed(0)
    model, batch = Leaf(LEAVES[name]), (torch.randn(32, 2), torch.randn(32, 1))
    expect_plain_gradients(model, batch, keep=lambda i: i % 2 == 0)


@pytest.mark.slow
def test_a_compiled_leaf_that_is_made_inside() -> None:
    torch.manual_seed(0)
    model, batch = Leaf(LEAVES["input"]), (torch.randn(32, 2), torch.randn(32, 1))
    expect_plain_gradients(model, batch, keep=lambda i: i % 2 == 0, backend="inductor")


def test_the_batch_has_no_gradient_of_a_leaf_made_inside() -> None:
    model, batch = Leaf(LEAVES["input"]), (torch.randn(32, 2), torch.randn(32, 1))
    problem = capture(model, batch, hardware="cpu", backend="eager")
    step = apply(plan(problem, schedule(problem, lambda i: True)), model, backend="eager")
    step(*batch).backward()
    assert not batch[0].requires_grad and batch[0].grad is None


def test_the_step_is_the_same_after_one_without_a_plan() -> None:
    model, batch = Leaf(LEAVES["input"]), (torch.randn(32, 2), torch.randn(32, 1))
    problem = capture(model, batch, hardware="cpu", backend="eager")
    step = apply(plan(problem, schedule(problem, lambda i: True)), model, backend="eager")
    model(*batch)
    assert batch[0].requires_grad
    step(*batch).backward()
    assert batch[0].grad is None
    assert capture(model, batch, hardware="cpu", backend="eager").name == problem.name


def test_a_parameter_that_is_thawed_inside_is_refused() -> None:
    class Thawed(Equation):
        def forward(self, x: Tensor, f: Tensor) -> Tensor:
            self.u.get_parameter("0.weight").requires_grad_()
            return super().forward(x, f)

    model = Thawed()
    model.u.get_parameter("0.weight").requires_grad = False
    with pytest.raises(InputError, match="requires_grad_"):
        capture(model, (torch.randn(32, 2, requires_grad=True), torch.randn(32, 1)), hardware="cpu")
