"""The first block of docs/train-under-a-limit.md, as it stands, on a model of the reader's own."""

from __future__ import annotations

import re

import torch
from torch import nn

from tests.architecture.sources import ROOT


def test_the_first_block_trains_the_readers_model() -> None:
    page = (ROOT / "docs" / "train-under-a-limit.md").read_text("utf-8")
    block = re.findall(r"```python\n(.*?)```", page, re.S)[0].replace("6GiB", "6.5MiB")
    plain = re.sub(r"with Pager.*", "if True:", block).replace("print(pager.stats[-1])", "")

    def trained(program: str) -> dict[str, object]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 1024), nn.Tanh(), nn.Linear(1024, 3))
        names: dict[str, object] = {
            "model": model,
            "loader": [(torch.randn(512, 64), torch.randint(3, (512,)))] * 5,
            "criterion": nn.CrossEntropyLoss(),
            "optimizer": torch.optim.AdamW(model.parameters()),
        }
        exec(compile(program, "train-under-a-limit.md", "exec"), names)
        return names

    paged, twin = trained(block), trained(plain)
    assert all(map(torch.equal, paged["model"].parameters(), twin["model"].parameters()))  # type: ignore[attr-defined]
    assert paged["pager"].stats[-1].planned == 1.0  # type: ignore[attr-defined]
    assert paged["pager"].stats[-1].stored_bytes > 0  # type: ignore[attr-defined]
