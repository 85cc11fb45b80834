"""Pages on ``fit``: the tutorial runs in order, and models of libraries train as in the reference."""

from __future__ import annotations

import copy
import functools
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import loadmaster
from loadmaster import executor
from loadmaster.executor import apply, capture
from tests.architecture.sources import ROOT
from tests.libraries import imported

TUTORIAL, REFERENCE = "plan-a-model.md", "fit-reference.md"
SECTION = "### Models of libraries as they come"


def python_blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.S)


def library_blocks() -> dict[str, str]:
    """The section's Python blocks: of each library, by its name, and what goes for all."""
    section = (ROOT / "docs" / REFERENCE).read_text("utf-8").partition(SECTION)[2].partition("\n## ")[0]
    return {
        (re.findall(r"^(?:from|import) (\w+)", block, re.M) or ["all"])[0]: block for block in python_blocks(section)
    }


@pytest.mark.slow
def test_the_tutorial_runs_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("fit", "capture", "apply"):
        monkeypatch.setattr(executor, name, functools.partial(getattr(executor, name), backend="eager"))
    names: dict[str, object] = {}
    for block in python_blocks((ROOT / "docs" / TUTORIAL).read_text("utf-8")):
        exec(compile(block, TUTORIAL, "exec"), names)
    assert {path.name for path in tmp_path.iterdir()} == {"record.json", "problem.json", "plan.json"}


@pytest.mark.slow
@pytest.mark.parametrize("library", ["transformers", "timm", "diffusers"])
def test_the_reference_trains_it(library: str) -> None:
    imported(library, needs=library)
    torch.manual_seed(0)
    eagerly = {name: functools.partial(f, backend="eager") for name, f in (("capture", capture), ("apply", apply))}
    names = {"torch": torch, "loadmaster": loadmaster, **eagerly}
    exec(compile(library_blocks()[library], REFERENCE, "exec"), names)
    model, batch, loss = names["model"], names["batch"], names["loss"]
    assert isinstance(model, nn.Module)
    twin = copy.deepcopy(model)
    exec(compile(library_blocks()["all"], REFERENCE, "exec"), names)
    if library == "transformers":
        expected = twin(**batch).loss
    elif library == "timm":
        expected = loss(twin(batch[0]), batch[1])
    else:
        expected = loss(twin(batch["sample"], batch["timestep"]), batch)
    expected.backward()
    torch.testing.assert_close(names["value"], expected)
    scale = max(float(p.grad.abs().max()) for p in twin.parameters())
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-5 * scale)
