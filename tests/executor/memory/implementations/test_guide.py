"""The guide's own implementation, run as it stands in ``docs/add-an-implementation.md``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from joint_graphs import arguments, flat, joint_graph, substitute
from torch import nn

from loadmaster.executor.memory.implementations import registry

GUIDE = Path(__file__).parents[4] / "docs" / "add-an-implementation.md"


@pytest.fixture
def guide():
    """What the guide's code leaves behind; its registrations are taken out again."""
    before = {a.name for a in registry.alternatives()}
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", GUIDE.read_text("utf-8"), re.S):
        exec(compile(block, str(GUIDE), "exec"), names)
    yield names
    for added in {a.name for a in registry.alternatives()} - before:
        registry.unregister(added)


def test_the_guides_implementation_is_what_it_says(guide):
    assert {"gelu_bfloat16", "norm_output_weighted"} <= {a.name for a in registry.alternatives()}
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 64), nn.GELU(), nn.Linear(64, 2))
    x = torch.randn(100, 5)
    joint = joint_graph(module, x)
    changed, sites = substitute(joint, guide["GeluFromHalf"]())
    assert sites == 1
    args = arguments(module, [x], [torch.randn(100, 2)])
    for got, want in zip(flat(changed(*args)), flat(joint(*args)), strict=True):
        assert (got - want).norm() <= 0.01 * want.norm()
    encoded = next(n for n in changed.graph.nodes if n.name.startswith("convert_element_type"))
    assert encoded.meta["val"].dtype == torch.bfloat16
    torch.library.opcheck(guide["halved"], (x,))


def test_every_built_in_name_is_in_the_guide():
    text = GUIDE.read_text("utf-8")
    assert [a.name for a in registry.alternatives() if f"`{a.name}`" not in text] == []
