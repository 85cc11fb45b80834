"""Every operator of a model's step runs on made-up inputs, at batches that are larger than sequences are long."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from loadmaster.executor.costs.limits import NotUnderstoodError
from loadmaster.executor.costs.materialize import materialize
from loadmaster.executor.costs.traffic import is_free
from loadmaster.executor.memory.implementations.passes import run_passes
from loadmaster.executor.steps.batch import batch_of
from loadmaster.executor.steps.tracing import trace
from tests.libraries import imported

CPU = torch.device("cpu")


def refused(model, batch, loss=None):
    """Operators of the step that do not run on what is made up, or for which nothing is."""
    step = trace(model.train(), batch_of(batch), loss, passes=run_passes)
    found, seen = {}, set()
    for node in step.nodes:
        if is_free(node):
            continue
        try:
            args, kwargs = materialize(node, CPU)
            described = str((node.target, [getattr(a, "shape", a) for a in (*args, *kwargs.values())]))
            if described not in seen:
                seen.add(described)
                node.target(*args, **kwargs)
        except (NotUnderstoodError, RuntimeError, ValueError, TypeError, IndexError) as error:
            found[str(node.target)] = str(error).splitlines()[0]
    assert seen
    return found


class Pooled(nn.Module):
    """Text as CLIP takes it: of each text the token with the highest number, which ends it."""

    def __init__(self):
        super().__init__()
        self.table, self.projection = nn.Embedding(50, 4), nn.Linear(4, 4)

    def forward(self, tokens):
        x = self.projection(self.table(tokens))
        pooled = x[torch.arange(x.shape[0], device=x.device), tokens.to(torch.int).argmax(-1)]
        return F.cross_entropy(pooled @ pooled.t(), torch.arange(x.shape[0], device=x.device))


class Everything(nn.Module):
    """Operators that take positions, in forward and backward."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 6, padding_idx=0)
        self.bags = nn.EmbeddingBag(7, 6, mode="mean")
        self.conv = nn.Conv2d(1, 2, 3, padding=1)

    def forward(self, tokens, picks, mask):
        x = self.table(tokens)  # [B, 5, 6]
        x = torch.gather(x, 1, picks.unsqueeze(-1).expand(-1, -1, 6))
        x = x + F.one_hot(picks % 6, 6)
        x = x.masked_fill(mask.unsqueeze(-1), 0.0).index_add(1, picks[0], x)
        x = x + self.bags(picks).unsqueeze(1) + x.flip(1).roll(1, 1) + x.cumsum(1)
        x = x.scatter_add(1, picks.unsqueeze(-1).expand(-1, -1, 6), x)
        x = x[:, torch.tensor([4, 0, 3])].sort(-1).values
        x = x + x.topk(2, -1).values.sum(-1, keepdim=True) + torch.take_along_dim(x, x.argsort(-1), -1)
        pooled, at = F.max_pool2d(self.conv(x.unsqueeze(1)), 3, 1, 1, return_indices=True)
        x = F.max_unpool2d(pooled, at, 3, 1, 1).flatten(1) + F.adaptive_max_pool2d(pooled, 1).sum((1, 2, 3)).unsqueeze(
            1
        )
        return F.cross_entropy(x, picks[:, 0]) + F.multi_margin_loss(x, picks[:, 0])


@pytest.mark.parametrize(("batch", "length"), [(256, 77), (3, 77)])
def test_texts_that_are_pooled_at_their_end(batch, length):
    """Both are indexed: the texts, of which there are many, and their tokens, of which there are few."""
    assert refused(Pooled(), (torch.randint(50, (batch, length)),)) == {}


@pytest.mark.parametrize("batch", [64, 2])
def test_positions_of_all_sorts(batch):
    tokens, picks = torch.randint(11, (batch, 5)), torch.randint(5, (batch, 5))
    assert refused(Everything(), (tokens, picks, torch.rand(batch, 5) < 0.5)) == {}


def grown(batch, times):
    """The same batch several times over."""

    def more(value):
        return (
            value.repeat(times, *[1] * (value.dim() - 1)) if isinstance(value, torch.Tensor) and value.dim() else value
        )

    return {k: more(v) for k, v in batch.items()} if hasattr(batch, "keys") else tuple(map(more, batch))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "times"),
    [
        ("transformers/CLIPModel", 10),
        ("transformers/MixtralForCausalLM", 10),
        ("timm/swin_tiny_patch4_window7_224", 1),
        ("torchvision/resnet18", 1),
    ],
)
def test_models_of_libraries_at_batches_larger_than_their_lengths(name, times):
    models = imported("benchmarks.zoo.entries", needs=name.partition("/")[0])
    model, batch, loss = models.entry(name).build()
    assert refused(model, grown(batch, times), loss) == {}
