"""The README's Python blocks, as they stand: one by itself, one on a model of the reader's own."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

from tests.architecture.sources import ROOT

FIRST, LOOP, *_ = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)


@pytest.mark.slow
def test_the_first_block_prints_a_lower_peak_and_equal_losses(capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    names: dict[str, Any] = {}
    exec(compile(FIRST, "README.md", "exec"), names)
    plain, planned, equal = capsys.readouterr().out.splitlines()
    peaks = [float(re.sub(r".*: peak ([\d.]+) MiB", r"\1", line)) for line in (plain, planned)]
    assert peaks[1] <= 0.6 * peaks[0]
    assert equal == "losses equal: True"
    assert names["fitted"].plan is not None


@pytest.mark.slow
def test_the_loop_trains_the_readers_model() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    plain = [p.detach().clone() for p in model.parameters()]
    batch = (torch.randn(4, 8), torch.randint(3, (4,)))
    names = {
        "model": model,
        "batch": batch,
        "loss": nn.CrossEntropyLoss(),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loader": [batch] * 2,
    }
    exec(compile(f"import loadmaster\nfrom loadmaster.executor import fit\n{LOOP}", "README.md", "exec"), names)

    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), plain, strict=True):
            parameter.copy_(value)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        nn.CrossEntropyLoss()(model(batch[0]), batch[1]).backward()
        optimizer.step()
        optimizer.zero_grad()
    trained = names["model"]
    assert isinstance(trained, nn.Module)
    for ours, theirs in zip(trained.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
