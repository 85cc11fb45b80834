"""A tower of layers, each followed by a random operator: its loss is its weights' gradient times the weights.

A layer without bias is linear in its weight, and a mask, noise that is multiplied, a random order or a random choice of
columns keep it so, whatever is drawn. So ``(W.grad * W).sum()`` is the loss, for every layer, if and only if the
backward pass has what the forward pass drew.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SEEDED = (torch.Tag.nondeterministic_seeded,)
WIDTH = 16


@torch.library.custom_op("loadmaster_tests::noise", mutates_args=(), tags=SEEDED)
def noise(x: Tensor) -> Tensor:
    return torch.rand_like(x)


@noise.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("loadmaster_tests::two_noises", mutates_args=(), tags=SEEDED)
def two_noises(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.rand_like(x), torch.rand_like(x)


@two_noises.register_fake
def _(x):
    return torch.empty_like(x), torch.empty_like(x)


@torch.library.custom_op("loadmaster_tests::make_noise_", mutates_args=("x",), tags=SEEDED)
def make_noise_(x: Tensor) -> None:
    x.uniform_()


@make_noise_.register_fake
def _(x):
    return None


def _written_into(y):
    made = torch.empty_like(y, requires_grad=False)
    make_noise_(made)
    return y * made.detach()


def _two_at_once(y):
    one, other = two_noises(y.detach())
    return y * one * other


def _attention(y):
    value = y.reshape(2, -1, 4, 4)
    same = torch.ones_like(value).detach()
    return F.scaled_dot_product_attention(same, same, value, dropout_p=0.3).reshape(y.shape)


def like(y, value: float):
    return torch.full_like(y, value).detach()


OPERATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda y: F.dropout(y, 0.5),
    "dropout2d": lambda y: F.dropout2d(y[:, :, None, None], 0.2)[:, :, 0, 0],
    "alpha_dropout": lambda y: y * F.alpha_dropout(like(y, 1.0), 0.3, training=True),
    "attention": _attention,
    "bernoulli": lambda y: y * torch.bernoulli(like(y, 0.7)),
    "bernoulli_": lambda y: y * torch.empty_like(y).bernoulli_(0.7),
    "randperm": lambda y: y[:, torch.randperm(WIDTH, device=y.device)],
    "multinomial": lambda y: y[:, torch.multinomial(torch.ones(WIDTH, device=y.device), WIDTH, True)],
    "rand": lambda y: y * torch.rand(y.shape, device=y.device),
    "rand_like": lambda y: y * torch.rand_like(y),
    "randn_like": lambda y: y * (1 + 0.1 * torch.randn_like(y)),
    "randint": lambda y: y * torch.randint(1, 3, y.shape, device=y.device),
    "normal": lambda y: y * torch.normal(like(y, 1.0), 0.1),
    "normal_": lambda y: y * torch.empty_like(y).normal_(1, 0.1),
    "uniform_": lambda y: y * torch.empty_like(y).uniform_(0.5, 1),
    "log_normal_": lambda y: y * torch.empty_like(y).log_normal_(0, 0.1),
    "geometric_": lambda y: y * torch.empty_like(y).geometric_(0.5),
    "exponential_": lambda y: y * torch.empty_like(y).exponential_(),
    "poisson": lambda y: y * torch.poisson(like(y, 3.0)),
    "rrelu": lambda y: -F.rrelu(-y, 0.1, 0.9, training=True),
    "gumbel_softmax": lambda y: y * F.gumbel_softmax(like(y, 0.0)),
    "custom": lambda y: y * noise(y.detach()),
    "custom_of_two": _two_at_once,
    "custom_in_place": _written_into,
}


class RandomTower(nn.Module):
    """Each layer's operator; ``breaks``: a graph break half-way."""

    def __init__(self, operators: list[str], *, breaks: bool = False, width: int = WIDTH) -> None:
        super().__init__()
        self.operators, self.breaks = operators, breaks
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in operators)

    def forward(self, x):
        for place, (layer, name) in enumerate(zip(self.layers, self.operators, strict=True)):
            x = OPERATORS[name](F.relu(layer(x)))
            x = x / x.detach().abs().mean()  # a constant for the gradient
            if self.breaks and place == len(self.operators) // 2:
                torch._dynamo.graph_break()
        return x.square().mean().sqrt()


def shares(step: Callable[..., Tensor], model: RandomTower, x: Tensor) -> dict[str, float]:
    """For each layer, its gradient times its weight, of the loss: 1 where the masks are those of the forward pass."""
    model.zero_grad()
    loss = step(x)
    loss.backward()
    found = [((layer.weight.grad * layer.weight).sum() / loss).item() for layer in model.layers]
    return {f"{place} {name}": share for place, (name, share) in enumerate(zip(model.operators, found, strict=True))}


def expect_one(found: dict[str, float]) -> None:
    """Refuse any share that is not 1."""
    wrong = {name: share for name, share in found.items() if not abs(share - 1) < 1e-4}
    assert not wrong
