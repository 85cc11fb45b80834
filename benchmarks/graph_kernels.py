"""Message passing compared with cuSPARSE and PyTorch Geometric: sums of neighbours, and training graph attention.

Run: ``python -m benchmarks.graph_kernels``; ``--small`` runs tiny graphs, also on a CPU, and writes
nothing. Calls are those that users make: ``graph.update_all``, ``edge_softmax``; ``matrix @ features`` and ``GATConv``
for the peers. Times are medians, by CUDA events, of runs that the host starts as a user would; each peer's values are
compared with ours first. Writes ``benchmarks/results/graph_kernels.json``.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import loadmaster.executor.graph.messages.functions as fn
from benchmarks import record
from loadmaster.executor.graph.messages.sparse import edge_softmax
from loadmaster.executor.graph.structure.graph import Graph

WIDTHS = (32, 64, 128, 256, 512)
HEADS, HEAD_WIDTH = 4, 16
GIB = 2**30
WARM_UP, REPEATS = 3, 15


def uniform(nodes: int, edges: int, device: str) -> Graph:
    """Draw both ends of every edge evenly."""
    ends = torch.randint(0, nodes, (2, edges), device=device)
    return Graph(*ends, node_count=nodes)


def power_law(nodes: int, edges: int, device: str) -> Graph:
    """Draw edges by a power law: nodes' shares fall as their rank to the power of -0.7; ids are shuffled."""
    order = torch.randperm(nodes, device=device)
    rank = (nodes * torch.rand(2, edges, device=device).pow(1 / 0.3)).long().clamp(max=nodes - 1)
    return Graph(*order[rank], node_count=nodes)


def road_like(nodes: int, edges: int, device: str) -> Graph:
    """Grid like a road network, rows one after the other, with some of its streets closed; both ways."""
    side = int(nodes**0.5)
    place = torch.arange(side * side, device=device).view(side, side)
    streets = torch.cat(
        [torch.stack([place[:, 1:], place[:, :-1]]).view(2, -1), torch.stack([place[1:], place[:-1]]).view(2, -1)], 1
    )
    kept = streets[:, torch.rand(streets.shape[1], device=device) < edges / (2 * streets.shape[1])]
    return Graph(*torch.cat([kept, kept.flip(0)], 1), node_count=side * side)


GRAPHS: dict[str, tuple[Callable[[int, int, str], Graph], int, int]] = {
    "uniform": (uniform, 1_000_000, 16_000_000),
    "power-law": (power_law, 500_000, 10_000_000),
    "road-like": (road_like, 1_000_000, 2_500_000),
}


def median_ms(run: Callable[[], object], device: str) -> float:
    """Median time of one call in ms."""
    times = []
    for repeat in range(WARM_UP + REPEATS):
        if device == "cpu":
            before = time.perf_counter()
            run()
            took = 1e3 * (time.perf_counter() - before)
        else:
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            stop.record()
            stop.synchronize()
            took = start.elapsed_time(stop)
        if repeat >= WARM_UP:
            times.append(took)
    return statistics.median(times)


def cupy_product(matrix: Tensor, features: Tensor) -> Callable[[], Any] | None:
    """Build cuSPARSE's product through cupy; None if that is not installed."""
    try:
        cupy = importlib.import_module("cupy")
        sparse = importlib.import_module("cupyx.scipy.sparse")
    except ImportError:
        return None
    if features.device.type != "cuda":
        return None
    parts = (matrix.values(), matrix.col_indices(), matrix.crow_indices())
    made = sparse.csr_matrix(tuple(cupy.from_dlpack(part) for part in parts), shape=tuple(matrix.shape))
    dense = cupy.from_dlpack(features)
    return lambda: made @ dense


def sums(name: str, graph: Graph, width: int) -> dict[str, Any]:
    """Measure one row: the sum of every node's in-neighbours."""
    device = graph.device.type
    features = torch.randn(graph.num_nodes(), width, device=graph.device)
    csc = graph.csc()
    ones = torch.ones(graph.num_edges(), device=graph.device)
    matrix = torch.sparse_csr_tensor(csc.ptr, csc.neighbour, ones, (graph.num_nodes(),) * 2)
    graph.ndata["h"] = features

    def ours() -> Tensor:
        graph.update_all(fn.copy_u("h", "m"), fn.sum("m", "o"))
        return graph.ndata["o"]

    want = matrix @ features
    torch.testing.assert_close(ours(), want, rtol=1e-3, atol=1e-3 * float(want.abs().max()))
    row: dict[str, Any] = {
        "case": "sum",
        "graph": name,
        "nodes": graph.num_nodes(),
        "edges": graph.num_edges(),
        "longest_row": int(graph.in_degrees().max()),
        "features": width,
        "ours_ms": median_ms(ours, device),
        "torch_sparse_ms": median_ms(lambda: matrix @ features, device),
    }
    peer = cupy_product(matrix, features)
    if peer is not None:
        row["cupy_ms"] = median_ms(peer, device)
    del graph.ndata["o"], graph.ndata["h"]
    return row


class AttentionLayer(nn.Module):
    """Graph attention as PyTorch Geometric's GATConv has it, without self-loops and dropout."""

    def __init__(self, inputs: int, heads: int, width: int) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.linear = nn.Linear(inputs, heads * width, bias=False)
        self.source, self.destination = (nn.Parameter(0.1 * torch.randn(1, heads, width)) for _ in range(2))
        self.bias = nn.Parameter(torch.zeros(heads * width))

    def forward(self, graph: Graph, x: Tensor) -> Tensor:
        with graph.local_scope():
            h = self.linear(x).view(-1, self.heads, self.width)
            graph.ndata["h"] = h
            graph.ndata["left"] = (h * self.source).sum(-1, keepdim=True)
            graph.ndata["right"] = (h * self.destination).sum(-1, keepdim=True)
            graph.apply_edges(fn.u_add_v("left", "right", "score"))
            graph.edata["a"] = edge_softmax(graph, functional.leaky_relu(graph.edata["score"], 0.2))
            graph.update_all(fn.u_mul_e("h", "a", "m"), fn.sum("m", "o"))
            return graph.ndata["o"].flatten(1) + self.bias


class Ours(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.first = AttentionLayer(inputs, HEADS, HEAD_WIDTH)
        self.second = AttentionLayer(HEADS * HEAD_WIDTH, HEADS, HEAD_WIDTH)

    def forward(self, graph: Graph, x: Tensor) -> Tensor:
        return self.second(graph, functional.elu(self.first(graph, x)))


class Theirs(nn.Module):
    """Peer network of PyTorch Geometric's layers, with our network's weights."""

    def __init__(self, ours: Ours, inputs: int) -> None:
        super().__init__()
        layers = importlib.import_module("torch_geometric.nn")
        self.first, self.second = (
            layers.GATConv(size, HEAD_WIDTH, heads=HEADS, add_self_loops=False) for size in (inputs, HEADS * HEAD_WIDTH)
        )
        with torch.no_grad():
            for theirs, mine in ((self.first, ours.first), (self.second, ours.second)):
                theirs.lin.weight.copy_(mine.linear.weight)
                theirs.att_src.copy_(mine.source)
                theirs.att_dst.copy_(mine.destination)

    def forward(self, edge_index: Tensor, x: Tensor) -> Tensor:
        return self.second(functional.elu(self.first(x, edge_index)), edge_index)


def training(model: nn.Module, structure: object, x: Tensor, labels: Tensor) -> dict[str, float]:
    """Measure a step's time, and the peak of memory in it beyond what is there before."""
    optimizer = torch.optim.Adam(model.parameters(), fused=x.device.type == "cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        functional.cross_entropy(model(structure, x), labels).backward()
        optimizer.step()

    step()
    if x.device.type == "cpu":
        return {"step_ms": median_ms(step, "cpu")}
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    peak = (torch.cuda.max_memory_allocated() - before) / GIB
    return {"step_ms": median_ms(step, "cuda"), "peak_gib": peak}


def attention(nodes: int, degree: int, device: str) -> list[dict[str, Any]]:
    """Measure two layers of attention, trained with our calls and with PyTorch Geometric's."""
    graph = uniform(nodes, nodes * degree, device)
    x = torch.randn(nodes, HEADS * HEAD_WIDTH, device=device)
    labels = torch.randint(0, HEADS * HEAD_WIDTH, (nodes,), device=device)
    ours = Ours(x.shape[1]).to(device)
    case = {"case": "attention", "nodes": nodes, "edges": graph.num_edges(), "heads": HEADS, "width": HEAD_WIDTH}
    try:
        theirs = Theirs(ours, x.shape[1]).to(device)
    except ImportError:
        return [{**case, "who": "ours", **training(ours, graph, x, labels)}]
    edge_index = torch.stack(graph.edges()).long()
    with torch.no_grad():
        torch.testing.assert_close(ours(graph, x), theirs(edge_index, x), rtol=1e-3, atol=1e-4)
    found = []
    for who, model, structure in (("ours", ours, graph), ("PyG GATConv", theirs, edge_index)):
        found.append({**case, "who": who, **training(model, structure, x, labels)})
        if device == "cuda":
            torch.cuda.empty_cache()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="tiny graphs; writes nothing")
    small = parser.parse_args().small
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    rows = []
    for name, (build, nodes, edges) in GRAPHS.items():
        share = 500 if small else 1
        graph = build(nodes // share, edges // share, device)
        for width in WIDTHS[:2] if small else WIDTHS:
            rows.append(sums(name, graph, width))
            print(rows[-1], flush=True)
    for row in attention(1000 if small else 256_000, 20, device):
        rows.append(row)
        print(row, flush=True)
    if not small:
        record.write("graph_kernels", {"versions": record.versions("torch_geometric", "cupy"), "rows": rows})


if __name__ == "__main__":
    main()
