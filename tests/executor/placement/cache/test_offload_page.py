"""The first block of docs/offload-as-you-go.md, as it stands, on a model of the reader's own."""

from __future__ import annotations

import re

import torch
from torch import nn

from tests.architecture.sources import ROOT


def blocks_of_the_page() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "offload-as-you-go.md").read_text("utf-8"), re.S)


def test_the_first_block_trains_the_readers_model() -> None:
    def trained(program: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 1024), nn.Tanh(), nn.Linear(1024, 3))
        names = {
            "model": model,
            "loader": [(torch.randn(512, 64), torch.randint(3, (512,)))] * 2,
            "criterion": nn.CrossEntropyLoss(),
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        }
        exec(compile(program, "offload-as-you-go.md", "exec"), names)
        if "cache" in names:
            assert names["cache"].stats().loaded_bytes >= 1 << 20
            names["cache"].close()
        return list(model.parameters())

    block = blocks_of_the_page()[0]
    plain = block.replace("with cache:", "if True:").replace('cache = TensorCache(model, to="host")\n', "")
    plain = plain.replace("print(cache.stats())\n", "")
    assert "cache" not in plain.replace("TensorCache", "")
    assert all(map(torch.equal, trained(block), trained(plain)))


def test_the_checkpointed_block_runs() -> None:
    model = nn.Module()
    model.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
    program = "from loadmaster.executor import TensorCache\n" + blocks_of_the_page()[2]
    exec(compile(program, "offload-as-you-go.md", "exec"), {"model": model, "x": torch.randn(4, 8)})
    assert all(p.grad is not None for p in model.parameters())
