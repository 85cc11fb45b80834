"""Problems captured of a layer and a graph, on the command line too, and constants of the GPU that are kept."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from loadmaster.errors import InputError
from loadmaster.executor.graph.command import main
from loadmaster.executor.graph.compiled import calibrate
from loadmaster.executor.graph.compiled.capture import capture, statistics_of_graph
from loadmaster.executor.graph.structure.graph import Graph
from loadmaster.models.graph.autodiff import with_backward
from loadmaster.models.graph.device import graph_hardware
from loadmaster.models.graph.library import layer
from loadmaster.models.graph.lowering import greedy_schedule

GRAPH = Graph([0, 1, 2, 0, 0], [1, 2, 0, 2, 2], node_count=4, relation=[1, 1, 0, 1, 1], relations=3)
HARDWARE = graph_hardware("h100")

FACTORY = """
from loadmaster.executor.graph.structure.graph import Graph
from loadmaster.models.graph.library import layer


def make():
    return layer("rgcn", 4, 8), Graph([0, 1], [1, 0], node_count=2)


def no_graph():
    return layer("rgcn", 4, 8), 3
"""


def test_a_captured_graph_is_counted() -> None:
    found = statistics_of_graph(GRAPH)
    assert (found.edges, found.source_pairs, found.target_pairs) == ((1, 4, 0), (1, 2, 0), (1, 2, 0))
    assert found.nodes == (4,)
    # Node 3 has no edge; nodes 0 and 1 have one that ends there, node 2 has three.
    assert found.in_degrees == (1, 2, 1) and found.longest[0] == 3
    assert statistics_of_graph(GRAPH) is found


def test_a_captured_problem_says_how_the_layer_trains() -> None:
    problem = capture(layer("rgcn", 4, 8), GRAPH, hardware=HARDWARE, feature_gradients=False, element_bytes=2)
    assert problem.training and not problem.feature_gradients and problem.element_bytes == 2
    assert problem.budget_bytes == HARDWARE.memory_bytes


def test_what_is_no_program_and_a_graph_without_edges_are_refused() -> None:
    with pytest.raises(InputError, match="layer: is no program"):
        capture(torch.nn.Linear(2, 2), GRAPH, hardware=HARDWARE)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="edges are too few"):
        capture(layer("rgcn", 4, 8), Graph([], [], node_count=3), hardware=HARDWARE)


@pytest.fixture
def factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "layer_factory.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("layer_factory", None)
    return "layer_factory"


def test_the_command_writes_a_problem(factory: str, tmp_path: Path) -> None:
    out = tmp_path / "problem.json"
    assert main([f"{factory}:make", "-o", str(out), "--hardware", "h100", "--inference", "--dtype", "bfloat16"]) == 0
    document = json.loads(out.read_text())
    assert (document["kind"], document["name"]) == ("graph", "make")
    assert (document["training"], document["element_bytes"]) == (False, 2)


def test_the_command_refuses_a_factory_without_a_graph(factory: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"{factory}:no_graph"]) == 2
    assert "returned no graph second" in capsys.readouterr().err


def test_constants_are_kept_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "hardware.json"
    assert calibrate.read(path) is None
    calibrate.write(path, HARDWARE)
    assert calibrate.read(path) == HARDWARE
    path.write_text("{")
    assert calibrate.read(path) is None


def test_a_device_that_is_no_gpu_is_not_calibrated() -> None:
    with pytest.raises(InputError, match="device: is no GPU"):
        calibrate.calibrated("cpu")


def test_every_kernel_of_a_layer_is_timed_with_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def launched(launch: Any) -> float:
        launch()
        return 5.0

    monkeypatch.setattr(calibrate, "_time_us", launched)
    program = with_backward(layer("rgat", 4, 4))
    schedule = greedy_schedule(program)
    found = [*calibrate.kernel_times(program, schedule, GRAPH, 4)]
    assert len(found) == len(schedule.kernels)
    assert all(us == 5.0 and work.dram_bytes > 0 for work, us in found)


@pytest.mark.gpu
@pytest.mark.slow
def test_a_gpu_is_calibrated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADMASTER_KERNEL_CACHE", str(tmp_path))
    found = calibrate.calibrated()
    assert 100 < found.dram_gbps < 20_000 and found.launch_us < 100
    monkeypatch.setattr(calibrate, "measured", None)
    assert calibrate.calibrated() == found
