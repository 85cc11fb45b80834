"""Features beyond the GPU: rows read in place compared with copies, a training step, and hot rows.

    python -m benchmarks.graph_features                            on a GPU with 40 GiB of host memory to spare
    python -m benchmarks.graph_features --device cpu --small       a trial without a GPU, no result

Link: random rows of a table of 8 GiB through ``table[index]``, compared with a pinned copy of 1 GiB (the link), the
processor's ``index_select`` from ordinary into pinned memory with a copy, PyTorch's ``index_select`` on the GPU over
our memory, and our kernel over memory that PyTorch pinned. A round is several calls with fresh indices, one after the
other, as a loop makes them; medians of CUDA events around a round. How long the host is busy with a call of ours is
measured, too. The processor uses every core, whatever the environment says.

Step: two layers of GraphSAGE (mean), fan-out 15 and 10, batches of 1024, 128 features on the host, a graph of 100 M
edges on the GPU. The peer samples with the same sampler, and has its rows gathered by the processor into pinned memory
by a thread ahead of the step, copied on a stream of their own. Its parts are timed alone, too: no pipeline is faster
than the slowest of its parts.

Hot rows: chosen by the sampled frequency of some batches, predicted by that of others, measured over the epochs timed.

Writes ``benchmarks/results/graph_features.json``.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import record
from loadmaster.executor.graph import (
    FeatureLoader,
    HotRows,
    UnifiedTensor,
    hottest,
    predicted_hit_rate,
    rows_within,
    sampled_frequency,
    unified_empty,
)
from loadmaster.executor.graph.features.gather import gather_rows

GIB = 1 << 30
WIDTHS = (32, 64, 100, 128, 256, 343, 513, 602, 1024)
FANOUT = (10, 15)  # of the seeds first
HOT_SHARE = 0.1  # of all rows
PARTS_OF = 8  # batches


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of one run."""

    table_bytes: int = 8 * GIB
    link_bytes: int = GIB
    gathered_bytes: int = 1 << 27
    rounds: int = 7
    calls: int = 4
    nodes: int = 10_000_000
    edges: int = 100_000_000
    features: int = 128
    hidden: int = 256
    classes: int = 47
    batch: int = 1024
    steps: int = 60


SMALL = Sizes(1 << 22, 1 << 20, 1 << 16, 3, 2, 2_000, 20_000, 16, 8, 3, 32, 6)


def seconds_of(call: Callable[[], Any], device: torch.device) -> float:
    """Seconds of a call, on the GPU's clock where there is one."""
    if device.type != "cuda":
        start_s = time.perf_counter()
        call()
        return time.perf_counter() - start_s
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    start.record()
    call()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / 1e3


def link_gbps(sizes: Sizes, device: torch.device) -> float:
    """Measure the link in GB/s: pinned host memory to the device, in one copy."""
    host = torch.empty(sizes.link_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
    there = torch.empty(sizes.link_bytes, dtype=torch.uint8, device=device)
    taken = [seconds_of(lambda: there.copy_(host, non_blocking=True), device) for _ in range(sizes.rounds + 2)]
    return sizes.link_bytes / statistics.median(taken[2:]) / 1e9


class OverHostMemory:
    """Object of which PyTorch makes a CUDA tensor over host memory (``__cuda_array_interface__``)."""

    def __init__(self, host: Tensor) -> None:
        self.__cuda_array_interface__ = {
            "shape": tuple(host.shape),
            "typestr": "<f4",
            "data": (host.data_ptr(), False),
            "strides": None,
            "version": 3,
        }


def on_device(host: Tensor, device: torch.device) -> Tensor | None:
    """View host memory as a CUDA tensor; None where PyTorch cannot make one."""
    try:
        alias = torch.as_tensor(OverHostMemory(host), device=device)
    except (RuntimeError, TypeError, ValueError) as error:
        print(f"no CUDA tensor over host memory: {str(error).splitlines()[0]}", file=sys.stderr)
        return None
    return alias if alias.data_ptr() == host.data_ptr() else None


def filled(shape: tuple[int, int], device: torch.device) -> UnifiedTensor:
    """Make a unified table of random numbers, on the device part by part."""
    table = unified_empty(shape, device=device)
    step = max(1, (1 << 26) // shape[1])
    for part in table.cpu_view.split(step):
        part.copy_(torch.randn(part.shape, device=device))
    return table


def gathers(sizes: Sizes, device: torch.device) -> list[dict[str, Any]]:
    """Measure random rows over the link, by length of row."""
    found = []
    link = link_gbps(sizes, device)
    ours = filled((sizes.table_bytes // 4096, 1024), device).view(-1)
    ordinary = torch.empty(ours.shape).copy_(ours.cpu_view)
    pinned = torch.empty(ours.shape, pin_memory=device.type == "cuda").copy_(ours.cpu_view)
    for width in WIDTHS:
        rows = ours.numel() // width
        table, by_pages, plain = (t[: rows * width].view(rows, width) for t in (ours, pinned, ordinary))
        assert isinstance(table, UnifiedTensor)
        count = sizes.gathered_bytes // (4 * width)
        alias = on_device(table.cpu_view, device) if device.type == "cuda" else None
        buffer = torch.empty(count, width, pin_memory=device.type == "cuda")
        there = torch.empty(count, width, device=device)

        def by_processor(index: Tensor, table: Tensor = plain, buffer=buffer, there=there) -> Tensor:
            torch.index_select(table, 0, index.cpu(), out=buffer)
            return there.copy_(buffer, non_blocking=True)

        ways: dict[str, Callable[[Tensor], Tensor]] = {
            "in_place": lambda index, table=table: table[index],
            "in_place_of_pinned": lambda index, table=by_pages: gather_rows(table, index),
            "processor_and_copy": by_processor,
        }
        if alias is not None:
            ways["index_select_over_host_memory"] = lambda index, alias=alias: torch.index_select(alias, 0, index)
        taken: dict[str, list[float]] = {name: [] for name in ways}
        host_s: dict[str, list[float]] = {name: [] for name in ways}
        for round_ in range(sizes.rounds + 2):
            for name, way in ways.items():
                indices = [torch.randint(0, rows, (count,), device=device) for _ in range(sizes.calls)]
                if round_ == 0:
                    assert torch.equal(way(indices[0]).cpu(), table.cpu_view[indices[0].cpu()]), name

                def calls(way=way, indices=indices, host_s=host_s[name]) -> None:
                    start_s = time.perf_counter()
                    for index in indices:
                        way(index)
                    host_s.append((time.perf_counter() - start_s) / len(indices))

                taken[name].append(seconds_of(calls, device) / sizes.calls)
        gbps = {name: 4 * width * count / statistics.median(s[2:]) / 1e9 for name, s in taken.items()}
        row = {
            "features": width,
            "rows": count,
            "link_gbps": link,
            "in_place_is_used": table.in_place,
            **{f"{name}_gbps": value for name, value in gbps.items()},
            "share_of_link": gbps["in_place"] / link,
            "times_processor": gbps["in_place"] / gbps["processor_and_copy"],
            "in_place_host_us": statistics.median(host_s["in_place"][2:]) * 1e6,
        }
        found.append(row)
        print(width, {k: round(v, 3) for k, v in row.items() if isinstance(v, float)})
    return found


class Graph:
    """Graph on the device: in-neighbours of every node, [nodes + 1] and [edges]; some are read far more often."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        generator = torch.Generator(device).manual_seed(0)
        degrees = torch.rand(sizes.nodes, device=device, generator=generator).add_(0.5).pow_(3)
        degrees = (degrees * (sizes.edges / float(degrees.sum()))).floor_().long().clamp_(min=1)
        self.pointers = torch.zeros(sizes.nodes + 1, dtype=torch.int64, device=device)
        torch.cumsum(degrees, 0, out=self.pointers[1:])
        edges = int(self.pointers[-1])
        self.neighbours = torch.empty(edges, dtype=torch.int32, device=device)
        names = torch.randperm(sizes.nodes, device=device, generator=generator).int()  # rows read much are anywhere
        for part in self.neighbours.split(1 << 25):
            drawn = torch.rand(part.numel(), device=device, generator=generator, dtype=torch.float64).pow_(3)
            part.copy_(names[(drawn * sizes.nodes).long()])
        self.nodes, self.edges, self.device = sizes.nodes, edges, device

    def sample(self, seeds: Tensor) -> tuple[list[tuple[Tensor, int]], Tensor]:
        """Sample neighbours with replacement, by layer: ([(source of each node and sample, nodes)], input nodes)."""
        blocks, nodes = [], seeds
        for fanout in FANOUT:
            first = self.pointers[nodes]
            degree = self.pointers[nodes + 1] - first
            drawn = torch.rand(nodes.numel(), fanout, device=self.device)
            place = first[:, None] + (drawn * degree[:, None]).long()
            found = self.neighbours[place].long()
            sources, inverse = torch.unique(torch.cat([nodes, found.view(-1)]), return_inverse=True)
            blocks.append((inverse, nodes.numel()))
            nodes = sources
        return blocks[::-1], nodes


class Sage(nn.Module):
    """GraphSAGE of two layers: a node's own features and the mean of its samples."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        widths = (sizes.features, sizes.hidden, sizes.classes)
        self.own, self.around = (nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths)) for _ in range(2))

    def forward(self, blocks: list[tuple[Tensor, int]], x: Tensor) -> Tensor:
        for layer, (inverse, count) in enumerate(blocks):
            around = x[inverse[count:]].view(count, -1, x.shape[1]).mean(1)
            x = self.own[layer](x[inverse[:count]]) + self.around[layer](around)
            x = torch.relu(x) if layer == 0 else x
        return x


def prefetched(
    seeds: Tensor, graph: Graph, table: Tensor, labels: Tensor, sizes: Sizes
) -> Iterator[tuple[list[tuple[Tensor, int]], Tensor, Tensor]]:
    """Yield the peer's batches: rows gathered by a processor thread, two batches ahead, copied from pinned memory."""
    device = graph.device
    streams = [torch.cuda.Stream(device) for _ in range(2)] if device.type == "cuda" else []

    def make(batch: Tensor) -> tuple[Any, ...]:
        if not streams:
            blocks, nodes = graph.sample(batch)
            return blocks, table[nodes], labels[batch], None
        with torch.cuda.stream(streams[0]):
            blocks, nodes = graph.sample(batch)
            here = nodes.cpu()
        buffer = torch.empty(here.numel(), table.shape[1], pin_memory=True)
        torch.index_select(table, 0, here, out=buffer)
        with torch.cuda.stream(streams[1]):
            rows = buffer.to(device, non_blocking=True)
            return blocks, rows, labels[batch], streams[1].record_event()

    worker = ThreadPoolExecutor(1)
    ahead: deque[Any] = deque()
    batches = iter(seeds.split(sizes.batch))
    for batch in batches:
        ahead.append(worker.submit(make, batch))
        if len(ahead) < 2:
            continue
        yield from _taken(ahead.popleft().result(), streams)
    while ahead:
        yield from _taken(ahead.popleft().result(), streams)
    worker.shutdown()


def _taken(made: tuple[Any, ...], streams: list[Any]) -> Iterator[tuple[list[tuple[Tensor, int]], Tensor, Tensor]]:
    blocks, rows, labels, event = made
    if streams:
        now = torch.cuda.current_stream()
        now.wait_event(event)
        for tensor in (rows, labels, *(inverse for inverse, _ in blocks)):
            tensor.record_stream(now)
    yield blocks, rows, labels


def trainer(sizes: Sizes, device: torch.device) -> Callable[[list[tuple[Tensor, int]], Tensor, Tensor], None]:
    """Make a training step: blocks, features and labels go in."""
    torch.manual_seed(0)
    model = Sage(sizes).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    def step(blocks: list[tuple[Tensor, int]], rows: Tensor, wanted: Tensor) -> None:
        nn.functional.cross_entropy(model(blocks, rows), wanted).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def parts_of_a_step(
    sizes: Sizes, graph: Graph, table: UnifiedTensor, ordinary: Tensor, labels: Tensor, seeds: Sequence[Tensor]
) -> dict[str, float]:
    """Milliseconds of each part of a step when nothing else runs; the host's clock, as the host may be what limits."""
    step, device = trainer(sizes, graph.device), graph.device
    sampled = [graph.sample(part) for part in seeds]
    rows = [table[nodes] for _, nodes in sampled]
    buffer = torch.empty(max(len(r) for r in rows), sizes.features, pin_memory=device.type == "cuda")
    here = [nodes.cpu() for _, nodes in sampled]

    def all_of(calls: Sequence[Callable[[], Any]]) -> float:
        taken = []
        for _ in range(sizes.rounds):
            start_s = time.perf_counter()
            for call in calls:
                call()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            taken.append((time.perf_counter() - start_s) * 1e3 / len(calls))
        return statistics.median(taken[2:] or taken)

    found = {
        "input_nodes": statistics.mean(len(r) for r in rows),
        "sample_ms": all_of([partial(graph.sample, part) for part in seeds]),
        "in_place_ms": all_of([partial(table.__getitem__, nodes) for _, nodes in sampled]),
        "processor_ms": all_of([partial(torch.index_select, ordinary, 0, i, out=buffer[: len(i)]) for i in here]),
        "train_ms": all_of(
            [partial(step, blocks, x, labels[part]) for (blocks, _), x, part in zip(sampled, rows, seeds, strict=True)]
        ),
    }
    print(found)
    return found


def step_time(sizes: Sizes, device: torch.device) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, float]]:
    """Measure the step with rows read in place, with hot rows, and the peer's; hit rates; the parts of a step."""
    graph = Graph(sizes, device)
    table = filled((sizes.nodes, sizes.features), device)
    ordinary = torch.empty(table.shape).copy_(table.cpu_view)
    labels = torch.randint(0, sizes.classes, (sizes.nodes,), device=device)
    generator = torch.Generator(device).manual_seed(1)
    warm, seeds, chosen_by, predicted_by = (
        torch.randint(0, sizes.nodes, (steps * sizes.batch,), device=device, generator=generator)
        for steps in (4, sizes.steps, sizes.steps, sizes.steps)
    )
    frequency = sampled_frequency(graph.sample, chosen_by.split(sizes.batch), sizes.nodes)
    budget_bytes = int(HOT_SHARE * sizes.nodes * sizes.features * 4)
    hot = hottest(frequency, rows_within(budget_bytes, table))
    hot_rows = HotRows(table, hot)

    def loader(features: Any) -> Callable[[Tensor], Iterator[tuple[Any, Tensor, Tensor]]]:
        def batches(of: Tensor) -> Iterator[tuple[Any, Tensor, Tensor]]:
            made = FeatureLoader(of, graph.sample, features, labels, batch_size=sizes.batch, shuffle=False)
            return ((b.blocks, b.features, b.labels) for b in made)

        return batches

    ways = {
        "pinned prefetch": lambda of: prefetched(of, graph, ordinary, labels, sizes),
        "in place": loader(table),
        "in place, hot rows": loader(hot_rows),
    }
    found = []
    for name, batches in ways.items():
        step = trainer(sizes, device)

        def train(of: Tensor, batches=batches, step=step) -> None:
            for batch in batches(of):
                step(*batch)

        train(warm)
        hot_rows.forget_reads()
        rounds = [seconds_of(lambda train=train: train(seeds), device) * 1e3 / sizes.steps for _ in range(3)]
        found.append({"pipeline": name, "step_ms": statistics.median(rounds), "rounds_ms": rounds})
        print(name, [round(ms, 3) for ms in rounds])
    for row in found:
        row["times_prefetch"] = found[0]["step_ms"] / row["step_ms"]
    rates = {
        "hot_rows": hot.numel(),
        "hot_bytes": hot_rows.device_bytes,
        "table_bytes": table.numel() * table.element_size(),
        "edges": graph.edges,
        "predicted": predicted_hit_rate(
            sampled_frequency(graph.sample, predicted_by.split(sizes.batch), sizes.nodes), hot
        ),
        "measured": hot_rows.hit_rate(),
    }
    print(rates)
    return found, rates, parts_of_a_step(sizes, graph, table, ordinary, labels, seeds.split(sizes.batch)[:PARTS_OF])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="tables of megabytes, and no result")
    asked = parser.parse_args()
    device, sizes = torch.device(asked.device), SMALL if asked.small else Sizes()
    start_s = time.perf_counter()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    rows = gathers(sizes, device)
    steps, rates, parts = step_time(sizes, device)
    print(f"{time.perf_counter() - start_s:.0f} s")
    if not asked.small:
        said = {"sizes": dataclasses.asdict(sizes), "threads": torch.get_num_threads()}
        print(record.write("graph_features", said | {"gather": rows, "step": steps, "parts": parts, "hot_rows": rates}))


if __name__ == "__main__":
    main()
