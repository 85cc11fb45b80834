"""Models with awkward corners under random schedules for a compiler that fuses, held against plain PyTorch.

Every random schedule keeps, recomputes, encodes and inlines something else; loss, every gradient and every updated
buffer must come out the same.
"""

from __future__ import annotations

import copy
from functools import cache

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from loadmaster.executor.memory.run.emission import emit
from loadmaster.models.memory.checker import check
from tests.executor.memory.replay import Replay

pytestmark = pytest.mark.slow  # most of its tests trace and run a model

SCHEDULES = 8
LOWERED = 3  # lowering takes about a second


class Twice(nn.Module):
    """A convolution and its BatchNorm called twice; ReLU results with several readers, returned as well."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        y = F.relu(self.norm(self.conv(x)))
        z = F.relu_(self.norm(self.conv(y)))
        return self.head(F.relu(y + z).mean((2, 3))), y, z * y


class TwoHeads(nn.Module):
    """Max-pool, transposed convolution, norms with and without weights, several activations, interpolation."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.pool, self.up = nn.MaxPool2d(3, 2, 1), nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.plain = nn.BatchNorm2d(8, affine=False)
        self.head, self.other = nn.Linear(8, 5), nn.Linear(8, 5)

    def forward(self, x):
        a = F.relu(self.norm(self.conv(x)), inplace=True)
        b = F.elu(F.leaky_relu(self.plain(self.up(self.pool(a))), 0.1) * a)
        c = b + F.interpolate(F.avg_pool2d(b, 2), scale_factor=2.0)
        return self.head(c.mean((2, 3))), self.other(a.mean((2, 3)))


class Volume(nn.Module):
    """Three dimensions, GroupNorm, a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.pool = nn.Conv3d(2, 8, 3, padding=1), nn.BatchNorm3d(8), nn.MaxPool3d(2)
        self.up, self.group, self.head = nn.ConvTranspose3d(8, 8, 2, stride=2), nn.GroupNorm(4, 8), nn.Conv3d(16, 3, 1)

    def forward(self, x):
        a = F.relu(self.norm(self.conv(x)))
        return self.head(torch.cat([a, F.relu6(self.group(self.up(self.pool(a))))], 1))


class Attention(nn.Module):
    """One layer called twice, masked softmax by einsum, cumsum, dropout, a head tied to the embedding, nll."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        self.norm, self.plain = nn.LayerNorm(16), nn.LayerNorm(16, elementwise_affine=False)
        self.qkv, self.up, self.down = nn.Linear(16, 48), nn.Linear(16, 32), nn.Linear(32, 16)
        self.dropout = dropout

    def layer(self, x, mask):
        q, k, v = self.qkv(self.norm(x)).view(*x.shape[:2], 3, 4, 4).permute(2, 0, 3, 1, 4).unbind(0)
        scores = torch.einsum("bhid,bhjd->bhij", q, k).masked_fill(mask, float("-inf"))
        x = x + torch.einsum("bhij,bhjd->bihd", F.dropout(scores.softmax(-1), self.dropout), v).reshape(x.shape)
        return x + self.down(F.gelu(self.up(self.plain(x))))

    def forward(self, tokens, targets):
        mask = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).triu(1)
        x = self.layer(self.layer(self.embedding(tokens), mask), mask)
        scores = F.linear(x + x.cumsum(1), self.embedding.weight).log_softmax(-1)
        return F.nll_loss(scores.flatten(0, 1), targets.flatten())


class Gated(nn.Module):
    """RMSNorm with and without weight, BatchNorm1d, SwiGLU, Mish, hardswish, softplus, writes into slices."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.rms, self.batch = nn.Linear(12, 16), nn.RMSNorm(16), nn.BatchNorm1d(16)
        self.gate, self.bare, self.norm = nn.Linear(16, 32), nn.RMSNorm(16, elementwise_affine=False), nn.LayerNorm(16)
        self.head = nn.Linear(16, 5)
        self.register_buffer("average", torch.zeros(16))

    def forward(self, x):
        y = self.rms(F.hardswish(self.batch(self.first(x))))
        self.average.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
        a, b = self.gate(y).chunk(2, -1)
        z = self.norm(self.bare(F.silu(a) * b + y) - self.average)
        z = F.relu(z).clone()
        z[:, ::2] *= 2
        z[:, 1] = y[:, 0]
        return self.head(F.mish(z) * F.softplus(y) + z.view(-1, 4, 4).transpose(1, 2).reshape(-1, 16))


class Clamps(nn.Module):
    """ReLU of ReLU, thresholds, clamps; a parameter whose gradient is a forward result as it stands."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.linear = nn.Parameter(torch.randn(6, 6)), nn.Linear(6, 6)

    def forward(self, x):
        y = F.relu(F.relu(self.linear(x)))
        z = F.threshold(y, 0.1, 0.0)
        a = F.relu6(F.hardtanh(z - 0.5))
        return (a * self.weight).sum() + F.celu(z).sum() + torch.where(y > z, y, z).sum()


def all_losses(outputs, targets):
    first, *others = outputs
    more = [o.square().mean() if o.dim() > 2 else F.cross_entropy(o, targets) for o in others]
    return F.cross_entropy(first, targets) + sum(more)


def case(name):
    """Model, batch, loss, in float64."""
    torch.manual_seed(0)
    images, labels = torch.randn(4, 3, 8, 8), torch.randint(0, 5, (4,))
    tokens = tuple(torch.randint(0, 40, (3, 10)) for _ in range(2))
    model, inputs, loss = {
        "twice": lambda: (Twice(), (torch.randn(4, 8, 8, 8), labels), all_losses),
        "two heads": lambda: (TwoHeads(), (images, labels), all_losses),
        "volume": lambda: (Volume(), (torch.randn(2, 2, 4, 6, 8), torch.randint(0, 3, (2, 4, 6, 8))), F.cross_entropy),
        "attention": lambda: (Attention(0.0), tokens, None),
        "dropout": lambda: (Attention(0.3), tokens, None),
        "gated": lambda: (Gated(), (torch.randn(7, 12), torch.randint(0, 5, (7,))), F.cross_entropy),
        "clamps": lambda: (Clamps(), (torch.randn(6, 6),), None),
    }[name]()
    return model.double(), tuple(t.double() if t.is_floating_point() else t for t in inputs), loss


@cache
def traced(name):
    """A step that is traced once for all its schedules, lowered and not."""
    return Replay(*case(name))


NAMES = (
    "twice",
    "two heads",
    "volume",
    "attention",
    pytest.param("dropout", marks=pytest.mark.slow),
    "gated",
    "clamps",
)


def assert_same(got, expected, rtol):
    assert len(got) == len(expected)
    for value, wanted in zip(got, expected, strict=True):
        assert (value is None) == (wanted is None)
        if wanted is not None:
            largest = float(wanted.abs().max())
            torch.testing.assert_close(value, wanted, rtol=0, atol=rtol * largest + 1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_random_schedules_compute_what_plain_pytorch_computes(name):
    model, inputs, loss = case(name)
    step = traced(name)
    expected = step.expected()
    for seed in range(SCHEDULES):
        chosen = step.random_schedule(seed)
        assert check(step.problem, chosen, 1 << 50).ok
        assert_same(step.under(chosen), expected, rtol=1e-9)
    if name == "dropout":  # plain PyTorch draws other masks
        return
    twin = copy.deepcopy(model)
    value = twin(*inputs) if loss is None else loss(twin(*inputs[:-1]), inputs[-1])
    value.backward()
    loss_of_first, gradients, buffers = step.first
    plain = [value.detach(), *(p.grad for p in twin.parameters()), *twin.buffers()]
    assert_same([loss_of_first, *gradients, *buffers], plain, rtol=1e-9)


def test_under_autocast_every_value_is_as_its_node_says():
    """Of BatchNorm's statistics on a CPU PyTorch itself records another precision."""
    model, inputs, loss = case("attention")
    with torch.autocast("cpu", torch.bfloat16):
        step = Replay(model.float(), inputs, loss)
    expected = step.expected()
    for seed in range(SCHEDULES):
        assert_same(step.under(step.random_schedule(seed)), expected, rtol=0.05)


def test_arguments_go_by_names_of_their_own():
    """Two arguments of the backward graph with one name in generated code would be one value."""
    step = traced("two heads")
    for seed in range(SCHEDULES):
        _, backward = emit(step.operators, step.random_schedule(seed))
        for argument in backward.graph.find_nodes(op="placeholder"):
            assert argument.target == argument.name


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_lowered_graphs_compute_the_same(name):
    step = traced(name)
    expected = step.expected()
    for seed in range(LOWERED):
        assert_same(step.under(step.random_schedule(seed), lowered=True), expected, rtol=1e-8)
