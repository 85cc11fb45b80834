"""Capturing a graph problem: a layer's program and the numbers of the graph that it runs on."""

from __future__ import annotations

from typing import Literal
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.graph.compiled.indices import Indices
from loadmaster.executor.graph.structure.graph import Graph
from loadmaster.models.graph.device import GraphHardware
from loadmaster.models.graph.documents import check_problem
from loadmaster.models.graph.problem import GraphProblem
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.statistics import GraphStatistics, counted

_counted: WeakKeyDictionary[Graph, GraphStatistics] = WeakKeyDictionary()


def capture(
    layer: Program,
    graph: Graph,
    *,
    hardware: GraphHardware,
    training: bool = True,
    feature_gradients: bool = True,
    element_bytes: Literal[2, 4] = 4,
    budget_bytes: int | None = None,
    name: str | None = None,
) -> GraphProblem:
    """The problem whose plans :func:`~loadmaster.executor.graph.compiled.compiling.compile` runs.

        problem = capture(layer, graph, hardware=calibrated())
        module = compile(layer, graph, loadmaster.plan(problem))

    Args:
        layer: as :func:`~loadmaster.models.graph.tracing.traced` makes it.
        hardware: :func:`~loadmaster.executor.graph.compiled.calibrate.calibrated` of the GPU present, or
            :func:`~loadmaster.models.graph.device.graph_hardware` of one by name.
        training: whether the backward pass is planned, too.
        feature_gradients: whether features get gradients; they do where other layers come before.
        element_bytes: of numbers that are kept: 2 where the layer runs in bfloat16.
        budget_bytes: memory of the GPU; None: that of ``hardware``.

    Raises:
        InputError: the layer is not a program, the graph no ``Graph`` or without edges, or the hardware not a GPU's.
    """
    expect_traced(layer)
    expect_graph(graph)
    if not isinstance(hardware, GraphHardware):
        raise InputError("hardware", hardware, "is no GPU's", 'Give calibrated(), or graph_hardware("h200").')
    problem = GraphProblem(
        name=name or "layer",
        program=layer,
        statistics=statistics_of_graph(graph),
        hardware=hardware,
        training=training,
        feature_gradients=feature_gradients,
        element_bytes=element_bytes,
        budget_bytes=hardware.memory_bytes if budget_bytes is None else budget_bytes,
    )
    check_problem(problem)
    return problem


def expect_traced(layer: object) -> None:
    """Refuse what :func:`~loadmaster.models.graph.tracing.traced` did not make."""
    if not isinstance(layer, Program):
        remedy = "Capture a function first: loadmaster.executor.graph.traced(function, ...)."
        raise InputError("layer", type(layer).__name__, "is no program", remedy)


def expect_graph(graph: object) -> None:
    """Refuse graphs of other libraries."""
    if not isinstance(graph, Graph):
        remedy = "Convert it: from_pyg(data), from_networkx(graph) or from_scipy(matrix)."
        raise InputError("graph", type(graph).__name__, "is no graph", remedy)


def statistics_of_graph(graph: Graph) -> GraphStatistics:
    """The numbers of a graph or block that plans are made from; counted once and kept. InputError: it has no edges."""
    if graph not in _counted:
        _counted[graph] = _count(graph)
    return _counted[graph]


def _count(graph: Graph) -> GraphStatistics:
    """Count edges, pairs and degrees on the graph's device, from indices that its kernels need as well."""
    indices, schema = Indices.of(graph), graph.schema
    if not indices.rows("edge"):
        raise InputError("graph", 0, "edges are too few", "Give a graph with edges.")
    edges, source_pairs, target_pairs = (
        np.diff(indices.segments(space, "relation")) for space in ("edge", "source_pair", "target_pair")
    )
    in_degree, out_degree = (_lengths(indices.groups("edge", end)[0]) for end in ("target", "source"))
    return counted(
        edges=edges,
        source_pairs=source_pairs,
        target_pairs=target_pairs,
        node_type_counts=schema.source_counts,
        in_degree=in_degree,
        out_degree=out_degree,
        longest_pairs=(
            indices.longest("edge", "target_pair"),
            indices.longest("edge", "source_pair"),
            indices.longest("target_pair", "target"),
            indices.longest("source_pair", "source"),
        ),
    )


def _lengths(ptr: Tensor) -> NDArray[np.integer]:
    """Return how many rows belong to each row, on the host."""
    found: NDArray[np.integer] = (ptr[1:] - ptr[:-1]).cpu().numpy()
    return found
