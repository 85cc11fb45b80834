"""Training steps as people write them by hand: teachers, twins, queues, codebooks. Each is one graph under a plan."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional as F

from loadmaster.executor import apply, capture
from tests.executor.memory.schedules import plan, schedule

pytestmark = pytest.mark.slow


def network(out: int = 16) -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, out))


class Steps(nn.Module):
    """Modules and buffers, and what is computed of them."""

    def __init__(self, compute: Callable[..., Tensor], **parts: nn.Module | Tensor) -> None:
        super().__init__()
        self.compute = compute
        for name, part in parts.items():
            self.register_buffer(name, part) if isinstance(part, Tensor) else self.add_module(name, part)

    def forward(self, *batch: Tensor) -> Tensor:
        return self.compute(self, *batch)


def distilled(own: Steps, x: Tensor, y: Tensor) -> Tensor:
    """The teacher is in the model, and trains not."""
    with torch.no_grad():
        soft = F.softmax(own.teacher(x) / 2, -1)
    logits = own.student(x)
    return F.cross_entropy(logits, y) + F.kl_div(F.log_softmax(logits / 2, -1), soft, reduction="batchmean")


def siamese(own: Steps, x: Tensor, other: Tensor) -> Tensor:
    """SimSiam: each view predicts the other, which is held still."""
    z, w = own.encoder(x), own.encoder(other)
    pairs = ((own.head(z), w), (own.head(w), z))
    return -sum(F.cosine_similarity(p, still.detach()).mean() for p, still in pairs)


def followed(own: Steps, x: Tensor, other: Tensor) -> Tensor:
    """BYOL: the target follows the encoder within the step."""
    with torch.no_grad():
        for follower, leader in zip(own.target.parameters(), own.encoder.parameters(), strict=True):
            follower.mul_(0.9).add_(leader, alpha=0.1)
        still = own.target(other)
    return F.mse_loss(F.normalize(own.encoder(x), dim=-1), F.normalize(still, dim=-1))


def queued(own: Steps, x: Tensor, other: Tensor) -> Tensor:
    """MoCo: keys of the steps before, in a buffer that moves on."""
    query = F.normalize(own.encoder(x), dim=1)
    with torch.no_grad():
        key = F.normalize(own.target(other), dim=1)
    scores = torch.cat([(query * key).sum(1, keepdim=True), query @ own.queue.clone()], 1) / 0.1
    own.queue.copy_(torch.cat([key.T, own.queue[:, : -len(key)]], 1))
    return F.cross_entropy(scores, torch.zeros(len(x), dtype=torch.int64))


def quantized(own: Steps, x: Tensor) -> Tensor:
    """VQ-VAE: the nearest code, straight through, and codes that follow."""
    z = own.encoder(x)
    near = F.one_hot(torch.cdist(z, own.codes).argmin(1), len(own.codes)).float()
    code = near @ own.codes
    with torch.no_grad():
        own.codes.mul_(0.9).add_(near.T @ z, alpha=0.1)
    return F.mse_loss(own.decoder(z + (code - z).detach()), x) + F.mse_loss(z, code.detach())


def preferred(own: Steps, chosen: Tensor, rejected: Tensor) -> Tensor:
    """DPO, beside a reference that is frozen."""

    def chance(model: nn.Module, ids: Tensor) -> Tensor:
        return model(ids).log_softmax(-1).gather(-1, ids[..., None]).sum((1, 2))

    with torch.no_grad():
        before = chance(own.reference, chosen) - chance(own.reference, rejected)
    return -F.logsigmoid(0.1 * (chance(own.policy, chosen) - chance(own.policy, rejected) - before)).mean()


def clipped(own: Steps, x: Tensor, action: Tensor, old: Tensor, gain: Tensor) -> Tensor:
    """PPO, with a distribution of PyTorch's."""
    chosen = Categorical(logits=own.policy(x))
    ratio = (chosen.log_prob(action) - old).exp()
    worth = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
    return F.mse_loss(own.value(x).squeeze(-1), gain) - worth - 0.01 * chosen.entropy().mean()


def interacting(own: Steps, dense: Tensor, ids: Tensor, starts: Tensor, y: Tensor) -> Tensor:
    """DLRM: products of the sums of embeddings, two by two."""
    both = torch.stack([own.dense(dense), own.bag(ids, starts)], 1)
    rows, columns = torch.tril_indices(2, 2, -1)
    crossed = torch.bmm(both, both.transpose(1, 2))[:, rows, columns]
    return F.binary_cross_entropy_with_logits(crossed.squeeze(1), y)


def in_frequencies(own: Steps, x: Tensor) -> Tensor:
    """A Fourier layer: complex numbers in between."""
    low = torch.fft.rfft(x)[:, :5]
    return (torch.fft.irfft(low * (1 + 0.1j), n=16) + own.layer(x)).square().mean()


def along_a_direction(own: Steps, x: Tensor) -> Tensor:
    """Forward-mode derivatives, and a function mapped over samples."""
    _, slope = torch.func.jvp(own.layer, (x,), (torch.ones_like(x),))
    return torch.vmap(lambda row: own.layer(row).tanh().sum())(x).square().mean() + slope.square().mean()


def frozen(out: int = 16) -> nn.Module:
    return network(out).requires_grad_(False)


def words() -> nn.Module:
    return nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 20))


def x() -> Tensor:
    return torch.randn(8, 16)


def numbers(most: int, *shape: int) -> Tensor:
    return torch.randint(most, shape)


IDIOMS: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "distillation": lambda: (Steps(distilled, student=network(), teacher=frozen()), (x(), numbers(16, 8))),
    "SimSiam": lambda: (Steps(siamese, encoder=network(), head=network()), (x(), x())),
    "BYOL": lambda: (Steps(followed, encoder=network(), target=frozen()), (x(), x())),
    "MoCo": lambda: (Steps(queued, encoder=network(), target=frozen(), queue=torch.randn(16, 32)), (x(), x())),
    "VQ-VAE": lambda: (Steps(quantized, encoder=network(), decoder=network(), codes=torch.randn(6, 16)), (x(),)),
    "DPO": lambda: (
        Steps(preferred, policy=words(), reference=words().requires_grad_(False)),
        (numbers(20, 4, 6), numbers(20, 4, 6)),
    ),
    "PPO": lambda: (
        Steps(clipped, policy=network(), value=network(1)),
        (x(), numbers(16, 8), torch.randn(8), torch.randn(8)),
    ),
    "DLRM": lambda: (
        Steps(interacting, dense=network(), bag=nn.EmbeddingBag(30, 16, mode="sum")),
        (x(), numbers(30, 24), torch.arange(0, 24, 3), torch.rand(8)),
    ),
    "Fourier": lambda: (Steps(in_frequencies, layer=nn.Linear(16, 16)), (x(),)),
    "functional": lambda: (Steps(along_a_direction, layer=nn.Linear(16, 16)), (x(),)),
}


@pytest.mark.parametrize("name", IDIOMS)
def test_gradients_and_buffers_are_those_of_plain_pytorch(name: str) -> None:
    torch.manual_seed(0)
    model, batch = IDIOMS[name]()
    twin = copy.deepcopy(model)
    problem = capture(model, batch, hardware="cpu", backend="eager")
    step = apply(plan(problem, schedule(problem, lambda i: i % 3 == 0)), model, backend="eager")
    for _ in range(2):
        model.zero_grad()
        twin.zero_grad()
        step(*batch).backward()
        twin(*batch).backward()
        torch.testing.assert_close([p.grad for p in model.parameters()], [p.grad for p in twin.parameters()])
        torch.testing.assert_close(model.state_dict(), twin.state_dict())
