"""``new memory``: a problem from a shipped graph, a chain, or a transformer by roofline."""

from __future__ import annotations

import argparse
from typing import Any

from loadmaster.api.cli.lazy import suggest
from loadmaster.api.cli.new_shapes import add_hardware, add_transformer, transformer_shape
from loadmaster.api.columns import table
from loadmaster.models.documents import Document
from loadmaster.models.hardware import Hardware, hardware
from loadmaster.models.memory import presets
from loadmaster.models.memory.documents import read_problem
from loadmaster.models.units import parse_bytes, show_bytes


def add_arguments(parser: argparse.ArgumentParser) -> argparse._MutuallyExclusiveGroup:
    """Add the flags of a memory problem: graph, sizes, hardware and offloading. Returns the group of sources."""
    source = parser.add_mutually_exclusive_group(required=True)
    names = presets.example_names()
    suggest(source.add_argument("--example", metavar="NAME", help=f"a shipped graph: {', '.join(names)}"), names)
    source.add_argument("--chain", type=int, metavar="N", help="a chain of N equal operators")
    add_transformer(source, parser)
    parser.add_argument("--activation-bytes", default="100MiB", metavar="SIZE", help="chain: of each result (100MiB)")
    parser.add_argument("--time-us", type=float, default=1000.0, metavar="T", help="chain: forward time of one (1000)")
    add_hardware(parser, "transformer: whose times")
    link = parser.add_mutually_exclusive_group()
    link.add_argument("--offload", action="store_true", help="allow it, over the host link of --hardware")
    link.add_argument("--offload-gbps", type=float, metavar="X", help="allow it, at X GB/s each way")
    return source


def build(arguments: argparse.Namespace) -> Document:
    """The problem document of a shipped graph, a chain or a transformer. Raises InputError naming the flag."""
    device = hardware(arguments.hardware, "--hardware")
    document = _preset(arguments, device)
    if arguments.offload:
        document["host_link"] = {"to_host_gbps": device.to_host_gbps, "from_host_gbps": device.from_host_gbps}
    elif arguments.offload_gbps is not None:
        document["host_link"] = dict.fromkeys(("to_host_gbps", "from_host_gbps"), arguments.offload_gbps)
    return document


def _preset(arguments: argparse.Namespace, device: Hardware) -> dict[str, Any]:
    if arguments.example is not None:
        return presets.example(arguments.example)
    if arguments.chain is not None:
        size = parse_bytes(arguments.activation_bytes, "--activation-bytes")
        return presets.chain(arguments.chain, size, arguments.time_us)
    return presets.transformer(*transformer_shape(arguments), device)


def listing() -> str:
    """List the shipped graphs with their operators and the bytes of their activations."""
    rows = []
    for name in presets.example_names():
        problem = read_problem(presets.example(name))
        total = show_bytes(sum(f.output_bytes for f in problem.forward if f.encodes is None))
        rows.append([name, str(len(problem.forward)), str(len(problem.backward)), total, problem.title or ""])
    return table(rows, ["example", "forward", "backward", "activations", "what"])
