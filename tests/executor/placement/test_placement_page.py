"""The Python of docs/place-a-training-state.md, as it stands, on a model of the reader's own."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import nn

import loadmaster
from tests.architecture.sources import ROOT


def test_the_blocks_capture_the_readers_model(capsys: Any) -> None:
    page = (ROOT / "docs" / "place-a-training-state.md").read_text("utf-8")
    model = nn.Sequential(nn.Linear(256, 1024), nn.Tanh(), nn.Linear(1024, 256))
    names: dict[str, Any] = {
        "model": model,
        "batch": (torch.randn(512, 256), torch.randn(512, 256)),
        "loss": nn.MSELoss(),
        "optimizer": torch.optim.AdamW(model.parameters()),
    }
    for block in re.findall(r"```python\n(.*?)```", page, re.S):
        exec(compile(block, "place-a-training-state.md", "exec"), names)
    assert "if nothing leaves" in capsys.readouterr().out
    assert [tier.name for tier in names["trace"].tiers] == ["host", "nvme"]
    plan = loadmaster.plan(names["trace"], budget_bytes="80%", time_limit_s=5)
    assert plan.check["ok"]
