"""What becomes of a model of the sweep: left out, refused, or planned and held against plain PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmarks import library_sweep


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) if x.sum() > 0 else self.layer(-x)


def made(model: nn.Module):
    return lambda: (model, (torch.randn(16, 8), torch.randn(16, 8)), nn.functional.mse_loss)


def too_large():
    raise ValueError("80 million parameters")


@pytest.fixture
def row_of(monkeypatch):
    def row_of(*makers):
        monkeypatch.setattr(library_sweep, "makers", lambda _name: makers)
        return library_sweep.row_of("ours/Model")

    return row_of


def test_the_first_that_trains_is_planned(row_of) -> None:
    model = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 8))
    row = row_of(too_large, made(model))
    assert row["parameters"] == sum(p.numel() for p in model.parameters())
    assert row["gradient_difference"] < 1e-6
    assert row["least_bytes"] <= row["peak_bytes"] <= row["budget_bytes"] <= row["plain_peak_bytes"]
    assert 0 <= row["gap"] < 0.1


def test_what_the_library_does_not_train_is_left_out(row_of) -> None:
    assert row_of(too_large) == {"model": "ours/Model", "left_out": "ValueError: 80 million parameters"}


def test_a_refusal_says_whether_there_is_one_graph(row_of) -> None:
    row = row_of(made(Branching()))
    assert "cannot be traced as one graph" in row["refused"]
    assert row["is_one_graph"] is False
