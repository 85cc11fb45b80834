"""Training on sampled blocks: two relational layers, compiled, compared with PyG's on the same blocks.

Usage: python -m benchmarks.graph_minibatch [--only MODEL DATASET] [--seconds N] [--small]

64 numbers in, 64 hidden, 64 classes, one head; 1,024 seeds, and of each node and relation at most 10 neighbours in
either layer. Nodes are of one type, as PyG's relational layers have it. Every block is new to the layer that is called
on it, as in training; what a layer makes of a block before it computes is part of the step.

``sampling`` is a call of the sampler. ``step_ms`` is what comes after it: features of the sampled nodes, both layers,
loss, backward pass and Adam. ``again_ms`` is the step once more on the same blocks: the difference is what a layer
makes of blocks. ``waits`` is how often the host waits for the GPU in a step on new blocks. ``loop_ms`` is the loop of
the page on graph networks, for each batch: the loader samples in a thread of its own while the step runs. Rivals get
the same blocks, as source and target nodes of every edge, and the same loader. RGCN's take source and target nodes
apart, so that they compute for targets alone; ``RGATConv`` takes nodes of one sort, of which the first are the targets.
Medians over batches, by CUDA events; warm-up batches are left out. All is on the GPU, products in TF32. ``--small`` is
for a try on CPUs: nothing is recorded.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks import record
from loadmaster.executor.graph import Block, FeatureLoader, Graph, NeighbourSampler
from loadmaster.executor.graph.compiled.compiling import compile as compile_layer
from loadmaster.models.graph.datasets import data_set, generated

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
OURS = "loadmaster"
MODELS, DATA_SETS = ("rgcn", "rgat"), ("am", "mag")
RIVALS = {"rgcn": ("RGCNConv", "FastRGCNConv"), "rgat": ("RGATConv",)}
WIDTH, FANOUTS = 64, (10, 10)
WARM, MEASURED = 8, 24


@dataclass(frozen=True)
class Case:
    """A graph with features and labels, and how many nodes a batch has."""

    graph: Graph
    x: Tensor
    labels: Tensor
    batch: int

    @property
    def sampler(self) -> NeighbourSampler:
        """Sampler that draws the same blocks each time."""
        generator = torch.Generator(DEVICE).manual_seed(0)
        return NeighbourSampler(self.graph, FANOUTS, generator=generator)

    @property
    def seeds(self) -> Tensor:
        """Seeds of all batches, warm-up first."""
        generator = torch.Generator().manual_seed(0)
        return torch.randperm(len(self.x), generator=generator)[: (WARM + MEASURED) * self.batch].to(DEVICE)


def case(name: str) -> Case:
    """Make a synthetic graph of a data set's size; ``small``: of a few nodes."""
    if name == "small":
        generator = np.random.default_rng(0)
        relation = np.sort(generator.integers(4, size=9_000))
        ends = [generator.integers(2_000, size=9_000) for _ in range(2)]
        nodes, relations, batch = 2_000, 4, 32
    else:
        *ends, relation = generated(name)
        nodes, relations, batch = data_set(name).nodes, data_set(name).relations, 1_024
    source, target, kind = (torch.from_numpy(x).to(DEVICE) for x in (*ends, relation))
    torch.manual_seed(0)
    graph = Graph(source, target, node_count=nodes, relation=kind, relations=relations)
    x = torch.randn(nodes, WIDTH, device=DEVICE)
    return Case(graph, x, torch.randint(WIDTH, (nodes,), device=DEVICE), batch)


class Compiled(nn.Module):
    """Layer of ours, called on a block as the page on graph networks has it."""

    def __init__(self, model: str, graph: Graph) -> None:
        super().__init__()
        self.layer = compile_layer(model, graph, width=WIDTH, out=WIDTH)

    def forward(self, h: Tensor, block: Block) -> Tensor:
        found: Tensor = self.layer(h, graph=block)
        return found


class OfPyG(nn.Module):
    """Layer of PyG, called with the ends and relations of a block's edges."""

    def __init__(self, name: str, graph: Graph) -> None:
        super().__init__()
        from torch_geometric import nn as layers

        self.takes_ends = name != "RGATConv"
        self.conv = getattr(layers, name)(WIDTH, WIDTH, graph.relation_count)

    def forward(self, h: Tensor, block: Block) -> Tensor:
        ends, targets = torch.stack((block.source.long(), block.destination.long())), block.num_dst_nodes()
        if self.takes_ends:
            found: Tensor = self.conv((h, h[:targets]), ends, block.relation.long())
            return found
        return self.conv(h, ends, block.relation.long())[:targets]  # type: ignore[no-any-return]


class Network(nn.Module):
    """Network of two layers with a ReLU between them."""

    def __init__(self, layer: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.first, self.second = layer(), layer()

    def forward(self, x: Tensor, blocks: Sequence[Block]) -> Tensor:
        found: Tensor = self.second(torch.relu(self.first(x, blocks[0])), blocks[1])
        return found


def systems(model: str, graph: Graph) -> Iterator[tuple[str, Callable[[], Network]]]:
    """Yield the systems by name, ours first, with functions that make them."""
    yield OURS, lambda: Network(lambda: Compiled(model, graph))
    for name in RIVALS[model]:
        yield f"pyg {name}", lambda name=name: Network(lambda: OfPyG(name, graph))


def timed(calls: Iterable[Callable[[], object]]) -> list[float]:
    """Time each call in milliseconds; the device is idle when one begins."""
    found = []
    for call in calls:
        if CUDA:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
            start.record()
            call()
            end.record()
            end.synchronize()
            found.append(float(start.elapsed_time(end)))
        else:
            begin = time.perf_counter()
            call()
            found.append((time.perf_counter() - begin) * 1e3)
    return found


def sampling(of: Case) -> dict[str, Any]:
    """Measure how long a call of the sampler takes, and the sizes of its blocks."""
    sampler, sizes = of.sampler, []

    def draw(seeds: Tensor) -> None:
        blocks = sampler(seeds).blocks
        sizes.append([(b.num_src_nodes(), b.num_dst_nodes(), b.num_edges()) for b in blocks])

    times = timed((lambda seeds=seeds: draw(seeds)) for seeds in torch.split(of.seeds, of.batch))
    medians = [
        [int(statistics.median(numbers)) for numbers in zip(*layer, strict=True)] for layer in zip(*sizes, strict=True)
    ]
    names = ("sources", "targets", "edges")
    return {
        "ms": statistics.median(times[WARM:]),
        "blocks": [dict(zip(names, layer, strict=True)) for layer in medians],
    }


def trained(network: Network) -> Callable[[Tensor, Sequence[Block], Tensor], None]:
    """Make a step of Adam on a batch."""
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)

    def step(x: Tensor, blocks: Sequence[Block], labels: Tensor) -> None:
        functional.cross_entropy(network(x, blocks), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return step


def steps(of: Case, network: Network) -> dict[str, Any]:
    """Measure times and peak of the step on blocks that are there, new and seen before."""
    step, sampler = trained(network), of.sampler

    def calls() -> Iterator[Callable[[], object]]:
        for at, seeds in enumerate(torch.split(of.seeds, of.batch)):
            blocks, nodes = sampler(seeds)
            if CUDA and at == WARM:
                torch.cuda.reset_peak_memory_stats()
            yield from [lambda: step(of.x[nodes], blocks, of.labels[seeds])] * 2  # noqa: B023 - called before the next

    times = timed(calls())[2 * WARM :]
    new, again = times[::2], times[1::2]
    found: dict[str, Any] = {"step_ms": statistics.median(new), "step_ms_range": [min(new), max(new)]}
    found["again_ms"] = statistics.median(again)
    if CUDA:
        found["peak_bytes"] = torch.cuda.max_memory_allocated()
        seeds = of.seeds[: of.batch]
        blocks, nodes = sampler(seeds)
        found["waits"] = waits(lambda: step(of.x[nodes], blocks, of.labels[seeds]))
    return found


def waits(call: Callable[[], object]) -> int:
    """Count how often the host waits for the GPU in a call, by PyTorch's own warnings."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing" in str(one.message) for one in told)


def loop(of: Case, network: Network) -> dict[str, Any]:
    """Measure the time of a batch in the loop in which sampling and steps overlap."""
    step = trained(network)
    loader = FeatureLoader(of.seeds, of.sampler, of.x, of.labels, batch_size=of.batch, shuffle=False)
    begin = 0.0
    for at, batch in enumerate(loader):
        if at == WARM:
            if CUDA:
                torch.cuda.synchronize()
            begin = time.perf_counter()
        step(batch.features, batch.blocks, batch.labels)
    if CUDA:
        torch.cuda.synchronize()
    return {"loop_ms": (time.perf_counter() - begin) * 1e3 / MEASURED}


def measured(of: Case, make: Callable[[], Network]) -> dict[str, Any]:
    """Measure all figures of a system, or state why it has none."""
    try:
        torch.manual_seed(0)
        network = make().to(DEVICE)
        return {"status": "measured", **steps(of, network), **loop(of, network)}
    except torch.OutOfMemoryError:
        return {"status": "out of memory"}
    except Exception as error:  # noqa: BLE001 - a rival that breaks is a cell of the table
        return {"status": f"failed: {type(error).__name__}: {str(error).splitlines()[0][:160]}"}
    finally:
        gc.collect()
        if CUDA:
            torch.cuda.empty_cache()


def main() -> None:
    """Measure, and write all figures after each system."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs=2, metavar=("MODEL", "DATASET"), default=("all", "all"))
    parser.add_argument("--seconds", type=float, default=70.0)
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    deadline = time.perf_counter() + args.seconds
    only_model, only_data = args.only
    names = ["small"] if args.small else [name for name in DATA_SETS if only_data in ("all", name)]
    rows: list[dict[str, Any]] = []
    samples: dict[str, Any] = {}
    for name in names:
        of = case(name)
        samples[name] = sampling(of)
        sys.stderr.write(f"{name}: sampling {samples[name]['ms']:.3f} ms, {samples[name]['blocks']}\n")
        for model in (model for model in MODELS if only_model in ("all", model)):
            for system, make in systems(model, of.graph):
                late = time.perf_counter() > deadline
                figures = {"status": "not run: no time left"} if late else measured(of, make)
                rows.append({"model": model, "dataset": name, "system": system, **figures})
                shown = " ".join(
                    f"{key} {figures[key]:8.3f}" for key in ("step_ms", "again_ms", "loop_ms") if key in figures
                )
                sys.stderr.write(f"{model:5} {name:6} {system:20} {shown or figures['status']}\n")
        if not args.small:
            gains = list(faster(rows))
            rival_versions = record.versions("torch-geometric")
            whole = {"sampling": samples, "gains": gains, "rival_versions": rival_versions, "rows": rows}
            record.write("graph_minibatch", whole)


def faster(rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Compute how much faster ours is than the fastest rival, of each layer and graph."""
    for model, name in itertools.product(MODELS, DATA_SETS):
        here = [row for row in rows if (row["model"], row["dataset"]) == (model, name) and "loop_ms" in row]
        for column in ("step_ms", "loop_ms"):
            ours = [row[column] for row in here if row["system"] == OURS]
            others = [row[column] for row in here if row["system"] != OURS]
            if ours and others:
                yield {"model": model, "dataset": name, "column": column, "gain": min(others) / ours[0]}


if __name__ == "__main__":
    main()
