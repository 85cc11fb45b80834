"""The blocks about graphs in docs/graph-networks.md, features-beyond-the-gpu.md and index.md, as they stand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

from loadmaster.api.cli.app import main as loadmaster_main
from loadmaster.executor.graph import CompiledLayer, command
from loadmaster.models.kinds import load_plan, load_problem
from tests.architecture.sources import ROOT


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text("utf-8"), re.S)


def run(page: str, *, until: int | None = None) -> dict[str, Any]:
    """What the Python blocks of a page define, one after the other."""
    torch.manual_seed(0)
    names: dict[str, Any] = {}
    for block in blocks(page, "python")[:until]:
        exec(compile(block, page, "exec"), names)
    return names


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    return run("docs/graph-networks.md")


def test_messages_are_weighted_sums_over_edges() -> None:
    graph = run("docs/graph-networks.md", until=1)["graph"]
    h, left, right = (graph.ndata[name].detach() for name in ("h", "left", "right"))
    expected = torch.zeros(3, 16)
    edges = list(zip((0, 1, 2, 2), (1, 2, 0, 1), strict=True))
    score = {(u, v): torch.nn.functional.leaky_relu(left[u] + right[v], 0.2).exp() for u, v in edges}
    for u, v in edges:
        expected[v] += score[u, v] / sum(score[e] for e in edges if e[1] == v) * h[u]
    torch.testing.assert_close(graph.ndata["out"].detach(), expected)
    assert graph.ndata["h"].grad.shape == (3, 16)


def test_a_planned_layer_computes_what_the_function_says(page: dict[str, Any]) -> None:
    planned, x, graph = page["planned"], page["features"].double(), page["graph"]
    assert isinstance(planned, CompiledLayer) and page["plan"].check["ok"]
    W, s = planned.W.detach().double(), planned.s.detach().double()
    source, destination, relation = (ends.long() for ends in (graph.source, graph.destination, graph.relation))
    message = torch.einsum("ei,eio->eo", x[source], W[relation])
    score = torch.nn.functional.leaky_relu((message * s[relation]).sum(-1), 0.2).exp()
    total = torch.zeros(200, dtype=torch.float64).index_add(0, destination, score)
    expected = torch.zeros(200, 8, dtype=torch.float64).index_add(
        0, destination, (score / total[destination])[:, None] * message
    )
    torch.testing.assert_close(planned(page["features"]).double(), expected, rtol=1e-4, atol=1e-4)


def test_the_loops_train_layers(page: dict[str, Any]) -> None:
    trained = page["module"](page["features"])
    cross_entropy = torch.nn.functional.cross_entropy
    assert cross_entropy(trained, page["labels"]) < cross_entropy(torch.zeros_like(trained), page["labels"])
    assert page["batch"].features.shape[0] == page["batch"].blocks[0].num_src_nodes()


@pytest.mark.slow
def test_the_commands_capture_plan_and_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those for the reader's layer as they stand; of the others, a smaller graph."""
    written = blocks("docs/graph-networks.md", "python")
    (tmp_path / "my_layer.py").write_text("\n".join((written[1], *(b for b in written if "on_my_graph" in b))))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    lines = [line for block in blocks("docs/graph-networks.md", "bash") for line in block.splitlines()]
    for line in (line for line in lines if line.startswith("loadmaster ")):
        words = shlex.split(line.replace(" mag ", " aifb "))[1:]
        if words[0] == "capture":
            words.remove("graph")
            assert command.main(words[1:]) == 0
        else:
            assert loadmaster_main(words) == 0
    assert (tmp_path / "plan-rgat-mag.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "plan.html").exists()
    assert load_problem("mine.json").name == "on_my_graph"
    assert load_plan("plan.json").name == "rgat-aifb"


def test_the_page_about_features_gathers_and_counts() -> None:
    names = run("docs/features-beyond-the-gpu.md", until=1)
    table, batch = names["features"].cpu_view, names["batch"]
    assert torch.equal(batch.features, table[batch.input_nodes])
    names = run("docs/features-beyond-the-gpu.md")
    assert 0 < names["features"].hit_rate() < 1


def test_the_layer_of_the_front_page_is_a_mean_over_edges() -> None:
    (block,) = [b for b in blocks("docs/index.md", "python") if "loadmaster.executor.graph" in b]
    (source, destination), relation, x = torch.randint(50, (2, 300)), torch.randint(3, (300,)), torch.randn(50, 64)
    names: dict[str, Any] = {"edges": (source, destination), "relation": relation, "features": x}
    exec(compile(block, "docs/index.md", "exec"), names)
    module = names["module"]
    message = torch.einsum("ei,eio->eo", x[source].double(), module.W.detach().double()[relation])
    expected = torch.zeros(50, 16, dtype=torch.float64).index_add(0, destination, message)
    expected /= torch.bincount(destination, minlength=50).clamp(min=1)[:, None]
    torch.testing.assert_close(module(x).double(), expected, rtol=1e-4, atol=1e-4)
