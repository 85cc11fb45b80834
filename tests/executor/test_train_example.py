"""``examples/train.py``: what it reports of a plan beside plain PyTorch."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from examples import train
from loadmaster import plan
from loadmaster.executor import capture
from loadmaster.models.memory.documents import write_plan


class Attention(nn.Module):
    """Adds a bias to its keys, which no gradient reaches: softmax takes it away again."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.queries, self.keys, self.dropout = nn.Linear(8, 8), nn.Linear(8, 8), dropout

    def forward(self, x, labels=None):
        mixed = F.scaled_dot_product_attention(self.queries(x), self.keys(x), x)
        logits = F.dropout(mixed, self.dropout)
        return {"logits": logits, "loss": (logits - labels).square().mean()}


def by_keyword():
    """Without dropout."""
    return Attention(), {"x": torch.randn(2, 6, 8), "labels": torch.randn(2, 6, 8)}


def with_dropout():
    """With it, and a loss of its own."""
    return Attention(0.5), {"x": torch.ones(2, 6, 8), "labels": torch.ones(2, 6, 8)}, lambda out, batch: out["loss"]


@pytest.mark.slow
@pytest.mark.parametrize("factory", [by_keyword, with_dropout])
def test_the_report(factory, tmp_path, monkeypatch, capsys):
    problem = capture(*factory(), hardware="cpu", backend="eager")
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(write_plan(plan(problem, budget_bytes=1 << 30, gap=0.5))))
    name = f"{__name__}:{factory.__name__}"
    monkeypatch.setattr(sys, "argv", ["train", name, str(path), "--steps", "2", "--backend", "eager"])
    train.main()
    report = json.loads(capsys.readouterr().out)
    assert len(report["planned"]["losses"]) == len(report["plain"]["losses"]) == 2
    if factory is with_dropout:
        assert "dropout off" in report["gradients"]["not_compared"]
    else:
        assert report["gradients"]["largest_relative"] < 1e-3
        assert report["loss"]["planned"] == pytest.approx(report["loss"]["plain"])


def test_gradients_that_are_rounding_are_held_against_the_others():
    theirs = {"weight": torch.tensor([2.0, -4.0]), "bias of keys": torch.tensor([1e-9])}
    rounded = {"weight": torch.tensor([2.0, -4.0]), "bias of keys": torch.tensor([-3e-9])}
    assert train.difference(theirs, theirs) == {"bit_equal": True, "largest_relative": 0.0}
    found = train.difference(rounded, theirs)
    assert not found["bit_equal"] and found["largest_relative"] == pytest.approx(4e-9 / 4e-4)
    # A small gradient that is none of rounding is held against itself; a large one that is another is far off.
    small = {"weight": theirs["weight"], "bias of keys": torch.tensor([1e-3])}
    off = {"weight": theirs["weight"], "bias of keys": torch.tensor([2e-3])}
    assert train.difference(off, small)["largest_relative"] == pytest.approx(1.0)
    assert train.difference({**theirs, "weight": -theirs["weight"]}, theirs)["largest_relative"] == 2.0
