"""``new`` and ``capture``: where problems come from."""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from typing import Any

from loadmaster.api.cli import new_collective
from loadmaster.api.cli.files import expect_writable, write_json
from loadmaster.api.cli.terminal import Terminal
from loadmaster.api.columns import table
from loadmaster.api.units import parse_budget, parse_bytes, show_bytes
from loadmaster.errors import MissingExtraError
from loadmaster.models.hardware import Hardware, hardware
from loadmaster.models.kinds import KINDS
from loadmaster.models.memory import presets
from loadmaster.models.memory.documents import read_problem


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this module's commands."""
    new = commands.add_parser("new", help="build a problem from a preset", description=_new.__doc__)
    kinds = new.add_subparsers(dest="kind", metavar="KIND", required=True)
    memory = kinds.add_parser("memory", help=KINDS["memory"].question)
    source = memory.add_mutually_exclusive_group(required=True)
    source.add_argument("--example", metavar="NAME", help=f"a shipped graph: {', '.join(presets.example_names())}")
    source.add_argument("--chain", type=int, metavar="N", help="a chain of N equal operators")
    source.add_argument("--transformer", action="store_true", help="a decoder-only transformer, roofline times")
    source.add_argument("--list", action="store_true", help="list the shipped graphs")
    memory.add_argument("--activation-bytes", default="100MiB", metavar="SIZE", help="chain: of each result (100MiB)")
    memory.add_argument("--time-us", type=float, default=1000.0, metavar="T", help="chain: forward time of one (1000)")
    memory.add_argument("--layers", type=int, default=24, metavar="N", help="transformer (24)")
    memory.add_argument("--hidden", type=int, default=1024, metavar="N", help="transformer (1024)")
    memory.add_argument("--sequence", type=int, default=1024, metavar="N", help="transformer: tokens (1024)")
    memory.add_argument("--batch", type=int, default=32, metavar="N", help="transformer: sequences (32)")
    memory.add_argument("--hardware", default="h200", metavar="NAME", help="transformer: whose times (h200)")
    memory.add_argument("--budget", metavar="SIZE", help="5GiB, 800MB, bytes, or 50%% of the unconstrained peak")
    link = memory.add_mutually_exclusive_group()
    link.add_argument("--offload", action="store_true", help="allow it, over the host link of --hardware")
    link.add_argument("--offload-gbps", type=float, metavar="X", help="allow it, at X GB/s each way")
    memory.add_argument("-o", "--output", default="-", metavar="PROBLEM.json", help="stdout if not given")
    memory.set_defaults(run=_new)
    new_collective.register(kinds)
    commands.add_parser("capture", help="build a problem from a PyTorch model (see: loadmaster capture --help)")


def capture(arguments: list[str]) -> int:
    """Run the executor's capture in a process of its own (this floor has no torch); returns its exit status.

    Raises:
        MissingExtraError: torch is not installed.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError("torch", "torch")
    return subprocess.run([sys.executable, "-m", "loadmaster.executor.capture", *arguments], check=False).returncode


def _new(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Build a problem document from a preset."""
    if arguments.list:
        terminal.data(_examples())
        return 0
    expect_writable(arguments.output, "-o")
    device = hardware(arguments.hardware)
    document = _preset(arguments, device)
    if arguments.offload:
        document["host_link"] = {"to_host_gbps": device.to_host_gbps, "from_host_gbps": device.from_host_gbps}
    elif arguments.offload_gbps is not None:
        document["host_link"] = dict.fromkeys(("to_host_gbps", "from_host_gbps"), arguments.offload_gbps)
    problem = read_problem(document)
    if arguments.budget is not None:
        document["budget_bytes"] = parse_budget(arguments.budget).resolve(problem)
    write_json(arguments.output, document, terminal)
    if arguments.output != "-":
        count = f"{len(problem.forward)} forward and {len(problem.backward)} backward operators"
        terminal.say(f"{arguments.output}: {problem.name}, {count}")
    return 0


def _preset(arguments: argparse.Namespace, device: Hardware) -> dict[str, Any]:
    if arguments.example is not None:
        return presets.example(arguments.example)
    if arguments.chain is not None:
        size = parse_bytes(arguments.activation_bytes, "--activation-bytes")
        return presets.chain(arguments.chain, size, arguments.time_us)
    shape = (arguments.layers, arguments.hidden, arguments.sequence, arguments.batch)
    return presets.transformer(*shape, device)


def _examples() -> str:
    rows = []
    for name in presets.example_names():
        problem = read_problem(presets.example(name))
        total = show_bytes(sum(f.output_bytes for f in problem.forward if f.encodes is None))
        rows.append([name, str(len(problem.forward)), str(len(problem.backward)), total, problem.title or ""])
    return table(rows, ["example", "forward", "backward", "activations", "what"])
