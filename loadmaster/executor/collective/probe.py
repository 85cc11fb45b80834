"""The profiler: measures the links of the running machine and writes them as a topology to plan for.

    python -m torch.distributed.run --nproc-per-node 8 -m loadmaster.executor.collective.probe -o topology.json

Every pair is timed briefly and pairs are put into classes by bandwidth, within nodes and between them; some pairs of
each class are timed well and fitted; pairs are then run at once to find what they share. What was measured, and what
could not be seen, is told in words on standard error.

Source: [Shah23], section 5.3.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from loadmaster.errors import InputError, LoadmasterError
from loadmaster.executor.collective.links import (
    LinkCost,
    Pair,
    Sample,
    Shared,
    TransferBatch,
    TransferTimer,
    find_shared,
    fit,
)
from loadmaster.executor.torch_private.distributed import default_group


@dataclass(frozen=True)
class HostInfo:
    """Host and device as one rank sees them.

    Attributes:
        gpu, pci: name and bus address of its GPU; None: none, or not told.
        numa: node of the GPU, or of the cores that the process may use; None: hidden, or several.
        matrix: what ``nvidia-smi topo -m`` says; None: not there.
    """

    host: str
    gpu: str | None
    pci: str | None
    numa: int | None
    cores: int
    matrix: str | None


def host_info(device: torch.device) -> HostInfo:
    """Read the host information of this process and its device."""
    gpu = pci = matrix = None
    numa = _numa_of_cores()
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        gpu, pci = properties.name, _pci(properties)
        numa = None if pci is None else _number(Path(f"/sys/bus/pci/devices/{pci}/numa_node"))
        matrix = _matrix()
    return HostInfo(socket.gethostname(), gpu, pci, numa, len(os.sched_getaffinity(0)), matrix)


def _pci(properties: object) -> str | None:
    """PCI address of a GPU as Linux writes it; releases of PyTorch before 2.8 do not tell it."""
    parts = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    if not all(isinstance(part, int) for part in parts):
        return None
    domain, bus, device = parts
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"


def _numa_of_cores() -> int | None:
    mine = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    nodes = [
        int(node.name.removeprefix("node"))
        for node in Path("/sys/devices/system/node").glob("node[0-9]*")
        if mine & {entry.name for entry in node.glob("cpu[0-9]*")}
    ]
    return nodes[0] if len(nodes) == 1 else None


def _number(path: Path) -> int | None:
    """Number of a NUMA node in a file under /sys; None where it is not told: virtual machines often say -1."""
    try:
        found = int(path.read_text())
    except (OSError, ValueError):
        return None
    return found if found >= 0 else None


def _matrix() -> str | None:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    said = subprocess.run([tool, "topo", "-m"], capture_output=True, text=True, timeout=60, check=False)
    return said.stdout.rstrip() if said.returncode == 0 else None


# Every class of link shows on a few nodes; pairs grow with the square of the ranks.
LARGEST_WORLD = 64
# Times of one class are within this ratio of their neighbours.
CLASS_RATIO = 1.4
PAIRS_PER_CLASS = 3
COUNTS = (2, 8)
SMALLEST_BYTES = 1024


@dataclass(frozen=True)
class Probed:
    """Result of a probe: ``topology``, a document to plan for; ``costs`` by class of links; ``report`` in words."""

    topology: dict[str, Any]
    costs: Mapping[str, LinkCost]
    report: str


def probe(
    group: dist.ProcessGroup,
    device: torch.device,
    *,
    largest_bytes: int = 1 << 24,
    repeats: int = 5,
    name: str = "probed",
) -> Probed:
    """Measure the links between all ranks of a group; every rank calls it and gets the same. ``largest_bytes`` of a
    transfer are at least 64 KiB, enough that bandwidth shows; of ``repeats`` times of every transfer, the least counts.
    InputError: fewer than two ranks, or more than 64; a size that is too small."""
    ranks = group.size()
    if not 2 <= ranks <= LARGEST_WORLD:
        remedy = f"Run 2 to {LARGEST_WORLD}: every class of link shows on a few nodes."
        raise InputError("world size", ranks, "ranks cannot be probed", remedy)
    if largest_bytes < 1 << 16:
        raise InputError("largest_bytes", largest_bytes, "is too small to tell a bandwidth", "Give at least 65536.")
    infos: list[HostInfo] = [host_info(device)] * ranks
    dist.all_gather_object(infos, infos[0], group=group)
    hosts = list(dict.fromkeys(info.host for info in infos))
    node_of = [hosts.index(info.host) for info in infos]
    bench = TransferTimer(group, device, repeats)

    pairs = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    # Twice, some time apart: what slows one pair down for a moment makes no class of it.
    rounds = [bench.seconds([TransferBatch((pair,), largest_bytes) for pair in pairs]) for _ in range(2)]
    alone = {pair: min(times[k][pair] for times in rounds) for k, pair in enumerate(pairs)}
    classes = classes_of(alone, node_of)
    costs = {label: fit(_samples(bench, members, largest_bytes)) for label, members in classes.items()}

    def slowdown(together: Sequence[Pair]) -> float:
        (times,) = bench.seconds([TransferBatch(tuple(together), largest_bytes)])
        return max(times.values()) / max(alone[pair] for pair in together)

    shared = find_shared(classes, node_of, slowdown)
    topology = document_of(name, node_of, classes, costs, shared)
    return Probed(topology, costs, _report(infos, classes, alone, costs, shared, largest_bytes))


def classes_of(alone: Mapping[Pair, float], node_of: Sequence[int]) -> dict[str, list[Pair]]:
    """Group pairs by the time of a large transfer, within nodes and between them; the fastest first."""
    classes: dict[str, list[Pair]] = {}
    for where, inside in (("within nodes", True), ("between nodes", False)):
        runs: list[list[Pair]] = []
        for pair in sorted(alone, key=lambda pair: (alone[pair], pair)):
            if (node_of[pair[0]] == node_of[pair[1]]) != inside:
                continue
            if not runs or alone[pair] > CLASS_RATIO * alone[runs[-1][-1]]:
                runs.append([])
            runs[-1].append(pair)
        for index, run in enumerate(runs):
            classes[where if len(runs) == 1 else f"{where} {index + 1}"] = sorted(run)
    return classes


def _samples(bench: TransferTimer, pairs: Sequence[Pair], largest_bytes: int) -> list[Sample]:
    """Time some pairs of a class, for several sizes and counts."""
    # Spread over the class, so that one odd rank is not all that is heard of it.
    chosen = pairs[:: max(1, len(pairs) // PAIRS_PER_CLASS)][:PAIRS_PER_CLASS]
    steps = [SMALLEST_BYTES]
    while steps[-1] * 16 < largest_bytes:
        steps.append(steps[-1] * 16)
    batches = []
    for pair in chosen:
        for size in (*steps, largest_bytes):
            batches.append(TransferBatch((pair,), size, echo=True))
            for count in COUNTS:
                if size * count <= 2 * largest_bytes:
                    batches += [TransferBatch((pair,), size, count, merged, echo=True) for merged in (False, True)]
    return [
        Sample(batch.size_bytes, batch.count, batch.merged, times[batch.pairs[0]])
        for batch, times in zip(batches, bench.seconds(batches), strict=True)
    ]


def document_of(
    name: str,
    node_of: Sequence[int],
    classes: Mapping[str, Sequence[Pair]],
    costs: Mapping[str, LinkCost],
    shared: Shared,
) -> dict[str, Any]:
    """Build the topology: every pair is a link with its class's costs, and with what it was seen to share. Where all
    ranks of a node reach one another by links that hold a port at either end, the node has a switch."""
    held: dict[Pair, list[str]] = {}
    for resource, holders in shared.resources.items():
        for pair in holders:
            held.setdefault(pair, []).append(resource)
    switches: list[list[int]] = []
    switch_of: dict[Pair, int] = {}
    for node in sorted(set(node_of)):
        ranks = [rank for rank, at in enumerate(node_of) if at == node]
        inside = [(a, b) for a in ranks for b in ranks if a != b]
        ported = all(
            any(resource.endswith(f"{way} {pair[end]}") for resource in held.get(pair, []))
            for pair in inside
            for end, way in enumerate(("egress", "ingress"))
        )
        if len(ranks) > 2 and ported:
            switch_of.update(dict.fromkeys(inside, len(switches)))
            switches.append(ranks)
    links = []
    for label, pairs in classes.items():
        cost = costs[label]
        for pair in pairs:
            link: dict[str, Any] = {"source": pair[0], "target": pair[1]}
            link |= {name: getattr(cost, name) for name in ("latency_ns", "message_ns", "gbps")}
            if pair in held:
                link["resources"] = sorted(held[pair])
            if pair in switch_of:
                link["switch"] = switch_of[pair]
            links.append(link)
    links.sort(key=lambda link: (link["source"], link["target"]))
    return {"name": name, "node_of": list(node_of), "links": links, "switches": switches}


def _report(
    infos: Sequence[HostInfo],
    classes: Mapping[str, Sequence[Pair]],
    alone: Mapping[Pair, float],
    costs: Mapping[str, LinkCost],
    shared: Shared,
    largest_bytes: int,
) -> str:
    lines = ["Ranks"]
    for rank, info in enumerate(infos):
        what = f"GPU {info.gpu} at {info.pci or 'an address not told'}" if info.gpu else f"CPU, {info.cores} cores"
        lines.append(f"  {rank}: host {info.host}, {what}, NUMA node {'?' if info.numa is None else info.numa}")
    for host in dict.fromkeys(info.host for info in infos):
        matrix = next((s.matrix for s in infos if s.host == host and s.matrix), None)
        if matrix:
            lines += [f"What nvidia-smi says of host {host}", *(f"  {line}" for line in matrix.splitlines())]
    lines.append("Classes of links")
    for label, pairs in classes.items():
        cost = costs[label]
        times = [alone[pair] for pair in pairs]
        lines.append(
            f"  {label}: {len(pairs)} links, latency {cost.latency_ns} ns, {cost.message_ns} ns a message, "
            f"{cost.gbps:.4g} GB/s (median error {cost.error:.1%}); {largest_bytes} bytes take "
            f"{1e6 * min(times):.0f} to {1e6 * max(times):.0f} us"
        )
    lines += ["What links share", *(f"  {line}" for line in shared.seen)]
    lines += ["Not seen", *(f"  {line}" for line in [*shared.unseen, *_hidden(infos)])]
    return "\n".join(lines) + "\n"


def _hidden(infos: Sequence[HostInfo]) -> list[str]:
    found = [
        "what of latency and occupancy is the software's: plans run on the same software, so it belongs to the cost",
        "NICs by name: ranks that share one show as sharing a way out or in between nodes",
        "sharing among more than two transfers at once, and between classes",
    ]
    if all(info.gpu is None for info in infos):
        found.append("NVLink and PCIe: no rank has a GPU")
    elif any(info.pci is None for info in infos):
        found.append("PCIe addresses: this release of PyTorch does not tell them")
    if any(info.numa is None for info in infos):
        found.append("NUMA nodes of some ranks: hidden (a virtual machine?), or the process may run on several")
    if any(info.gpu and info.matrix is None for info in infos):
        found.append("the driver's own view of NVLink and PCIe: nvidia-smi is not there or does not tell")
    if len({info.host for info in infos}) == 1:
        found.append("links between nodes: all ranks are on one host")
    return found


def parser() -> argparse.ArgumentParser:
    """Build the parser of the command's arguments."""
    p = argparse.ArgumentParser(
        prog="python -m torch.distributed.run ... -m loadmaster.executor.collective.probe",
        description="Measure the links between the ranks of this job and write them as a topology.",
    )
    p.add_argument("-o", "--output", type=Path, help="where to write the topology (default: standard output)")
    p.add_argument(
        "--device", choices=["auto", "cpu", "cuda"], default="auto", help="what sends (default: GPUs if any)"
    )
    p.add_argument("--largest-bytes", type=int, help="of a transfer (default: 16 MiB; 128 MiB on GPUs)")
    p.add_argument("--repeats", type=int, default=5, help="times that each transfer is timed (5)")
    p.add_argument("--name", default="probed", help="name of the topology")
    return p


def main(arguments: Sequence[str] | None = None) -> int:
    """Probe the links, let rank 0 write the topology, and return the exit status."""
    options = parser().parse_args(arguments)
    if "RANK" not in os.environ:
        sys.stderr.write("This is one process: start the ranks with python -m torch.distributed.run.\n")
        return InputError.exit_status
    cuda = options.device == "cuda" or (options.device == "auto" and torch.cuda.is_available())
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    try:
        probed = probe(
            default_group(),
            device,
            largest_bytes=options.largest_bytes or (1 << 27 if cuda else 1 << 24),
            repeats=options.repeats,
            name=options.name,
        )
        if dist.get_rank() == 0:
            text = json.dumps(probed.topology, indent=1) + "\n"
            if options.output:
                options.output.write_text(text)
            else:
                sys.stdout.write(text)
            sys.stderr.write(probed.report)
    except LoadmasterError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    finally:
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
