"""The kind ``graph`` on the executor floor: graphs, message passing, compiled layers, features beyond the GPU."""

from __future__ import annotations

from loadmaster.errors import MissingExtraError

try:
    import torch as _torch  # noqa: F401
except ImportError:
    raise MissingExtraError("torch", "torch") from None

from loadmaster.executor.graph.compiled.calibrate import calibrated
from loadmaster.executor.graph.compiled.capture import capture
from loadmaster.executor.graph.compiled.compiling import compile, tune
from loadmaster.executor.graph.compiled.module import CompiledLayer
from loadmaster.executor.graph.features.hot_rows import (
    HotRows,
    hottest,
    out_degrees,
    predicted_hit_rate,
    reverse_pagerank,
    rows_within,
    sampled_frequency,
)
from loadmaster.executor.graph.features.loader import Batch, FeatureLoader
from loadmaster.executor.graph.features.making import unified, unified_empty, unified_file
from loadmaster.executor.graph.features.unified_tensor import UnifiedTensor
from loadmaster.executor.graph.messages import functions as fn
from loadmaster.executor.graph.messages.sparse import edge_softmax
from loadmaster.executor.graph.structure.batches import GraphBatch, batch, readout_edges, readout_nodes, unbatch
from loadmaster.executor.graph.structure.blocks import Block
from loadmaster.executor.graph.structure.conversions import (
    from_networkx,
    from_pyg,
    from_scipy,
    load_graphs,
    save_graphs,
    to_networkx,
    to_pyg,
    to_scipy,
)
from loadmaster.executor.graph.structure.graph import Graph
from loadmaster.executor.graph.structure.sampling import NeighbourSampler, random_walk
from loadmaster.executor.graph.structure.selection import edge_subgraph, node_subgraph, relation_subgraph
from loadmaster.models.graph.device import graph_hardware
from loadmaster.models.graph.tracing import (
    concat,
    dot,
    elu,
    exp,
    gelu,
    leaky_relu,
    log,
    per_node_type,
    per_relation,
    relu,
    shared,
    sigmoid,
    tanh,
    traced,
)

__all__ = [
    "Batch",
    "Block",
    "CompiledLayer",
    "FeatureLoader",
    "Graph",
    "GraphBatch",
    "HotRows",
    "NeighbourSampler",
    "UnifiedTensor",
    "batch",
    "calibrated",
    "capture",
    "compile",
    "concat",
    "dot",
    "edge_softmax",
    "edge_subgraph",
    "elu",
    "exp",
    "fn",
    "from_networkx",
    "from_pyg",
    "from_scipy",
    "gelu",
    "graph_hardware",
    "hottest",
    "leaky_relu",
    "load_graphs",
    "log",
    "node_subgraph",
    "out_degrees",
    "per_node_type",
    "per_relation",
    "predicted_hit_rate",
    "random_walk",
    "readout_edges",
    "readout_nodes",
    "relation_subgraph",
    "relu",
    "reverse_pagerank",
    "rows_within",
    "sampled_frequency",
    "save_graphs",
    "shared",
    "sigmoid",
    "tanh",
    "to_networkx",
    "to_pyg",
    "to_scipy",
    "traced",
    "tune",
    "unbatch",
    "unified",
    "unified_empty",
    "unified_file",
]
