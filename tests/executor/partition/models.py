"""Small models of many sorts, in float64: what users split."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

Made = tuple[nn.Module, tuple[Tensor, ...], Callable[[Tensor, Tensor], Tensor]]


def t(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def classes(count: int, *shape: int) -> Tensor:
    return torch.randint(count, shape, generator=torch.Generator().manual_seed(count))


def cross_entropy(scores: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(scores.flatten(0, -2), targets.flatten())


def perceptron() -> Made:
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    return model, (t(8, 8), t(8, 4)), functional.mse_loss


def convolutional() -> Made:
    """Channels that are split and summed, statistics over the batch, pooling."""
    model = nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 4),
    )
    return model, (t(8, 4, 16, 16), classes(4, 8)), functional.cross_entropy


class Recurrent(nn.Module):
    """An LSTM of as many steps as it is given, its cell written out."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Linear(16, 32)
        self.out = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(x.shape[0], 8)
        for step in x.unbind(1):
            i, f, g, o = self.gates(torch.cat((step, h), 1)).unflatten(1, (4, 8)).unbind(1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        out: Tensor = self.out(h)
        return out


def recurrent(steps: int = 4) -> Made:
    return Recurrent(), (t(8, steps, 8), classes(4, 8)), functional.cross_entropy


def recurrent_for_two_steps() -> Made:
    """Weights that are used again, in as few kernels as that takes: a compiler takes its time for each."""
    return recurrent(steps=2)


class Block(nn.Module):
    """Attention and an MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(self.first(x)).chunk(3, -1))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        found: Tensor = x + self.mlp(self.second(x))
        return found


class Gpt(nn.Module):
    """Two blocks, a head of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(32, 16)
        self.places = nn.Parameter(t(8, 16))
        self.blocks = nn.Sequential(Block(16, 4), Block(16, 4))
        self.head = nn.Linear(16, 32, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.head(self.blocks(self.tokens(ids) + self.places))
        return found


def gpt() -> Made:
    return Gpt(), (classes(32, 8, 8), classes(32, 8, 8)), cross_entropy


def llama() -> Made:
    from examples.llama import llama as made

    torch.manual_seed(0)
    model, inputs, _ = made(batch=8, length=8, vocabulary=32, layers=2, width=32, heads=4, groups=2, hidden=48)
    return model, inputs, cross_entropy


class Experts(nn.Module):
    """Four experts, each token to its best two: dense, so that shapes do not depend on the data.

    ``one_hot`` asserts that there are such experts, which is an operator without a result.
    """

    def __init__(self) -> None:
        super().__init__()
        self.choose = nn.Linear(8, 4, bias=False)
        self.up = nn.Parameter(t(4, 8, 16))
        self.down = nn.Parameter(t(4, 16, 8))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.choose(x).softmax(-1)
        best, at = scores.topk(2, -1)
        weights = torch.einsum("nk,nke->ne", best / best.sum(-1, keepdim=True), functional.one_hot(at, 4).to(x.dtype))
        hidden = torch.einsum("nd,edh->enh", x, self.up).relu()
        return torch.einsum("enh,ehd,ne->nd", hidden, self.down, weights)


def experts() -> Made:
    return Experts(), (t(8, 8), t(8, 8)), functional.mse_loss


MADE: dict[str, Callable[[], Made]] = {
    made.__name__: made for made in (perceptron, convolutional, recurrent, gpt, llama, experts)
}
TO_COMPILE: dict[str, Callable[[], Made]] = {"recurrent, two steps": recurrent_for_two_steps}


def made(name: str) -> Made:
    """The model of a name, with the same values each time."""
    torch.manual_seed(0)
    model, batch, loss = (MADE | TO_COMPILE)[name]()
    return model.double(), batch, loss
