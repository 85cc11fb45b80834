"""``hardware`` and ``solvers``: the hardware catalogue, the devices of this machine, and the solvers on it."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
from typing import Any

from loadmaster.api.cli.lazy import suggest
from loadmaster.api.cli.terminal import Terminal
from loadmaster.api.columns import table
from loadmaster.errors import LoadmasterError, how_to_install
from loadmaster.models.hardware import Hardware, catalogue, hardware, hardware_reported_as
from loadmaster.models.units import show_bytes

_PROBE_WITHIN_S = 20.0


def hardware_arguments(machines: argparse.ArgumentParser) -> None:
    """Add the arguments of ``hardware``: its verbs ``list``, ``show`` and ``probe``."""
    verbs = machines.add_subparsers(
        dest="verb", metavar="list|show|probe", required=True, parser_class=argparse.ArgumentParser
    )
    every = verbs.add_parser("list", help="the catalogue")
    every.add_argument("--json", action="store_true", help="print JSON")
    every.set_defaults(run=_list)
    one = verbs.add_parser("show", help="one entry")
    suggest(one.add_argument("name", metavar="NAME"), (entry.name for entry in catalogue()))
    one.set_defaults(run=_show)
    probe = verbs.add_parser("probe", help="the devices of this machine", description=_probe.__doc__)
    probe.set_defaults(run=_probe)


def solvers_arguments(solvers: argparse.ArgumentParser) -> None:
    """Add the arguments of ``solvers`` to its parser."""
    solvers.add_argument("--json", action="store_true", help="print JSON")
    solvers.set_defaults(run=_solvers)


def _list(arguments: argparse.Namespace, terminal: Terminal) -> int:
    if arguments.json:
        terminal.json([entry.document() for entry in catalogue()])
    else:
        terminal.data(table([_row(e) for e in catalogue()], ["name", "memory", "GB/s", "bf16 TFLOP/s", "title"]))
    return 0


def _row(entry: Hardware) -> list[str]:
    rate = f"{entry.tflops_for('bfloat16'):g}"
    return [entry.name, show_bytes(entry.memory_bytes), f"{entry.dram_gbps:g}", rate, entry.title]


def _show(arguments: argparse.Namespace, terminal: Terminal) -> int:
    terminal.json(hardware(arguments.name).document())
    return 0


def _probe(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Print this machine's processor cores and its GPUs, as the NVIDIA driver reports them, with the catalogue entries
    that fit."""
    terminal.json({"cpu_cores": os.cpu_count(), "gpus": _gpus(terminal)})
    return 0


def _gpus(terminal: Terminal) -> list[dict[str, Any]]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        terminal.say("nvidia-smi is not on the path: no GPU can be seen")
        return []
    query = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=_PROBE_WITHIN_S, check=True).stdout
    except subprocess.TimeoutExpired:
        raise LoadmasterError(f"nvidia-smi gave no answer within {_PROBE_WITHIN_S:g} s") from None
    except subprocess.CalledProcessError as error:
        raise LoadmasterError(f"nvidia-smi failed: {(error.stdout + error.stderr).strip()}") from None
    gpus = []
    for line in answer.splitlines():
        name, _, mebibytes = line.rpartition(", ")
        entry = hardware_reported_as(name)
        memory_bytes = int(mebibytes) << 20 if mebibytes.isdigit() else None
        gpus.append({"name": name, "memory_bytes": memory_bytes, "hardware": entry.name if entry else None})
    return gpus


def _solvers(arguments: argparse.Namespace, terminal: Terminal) -> int:
    from loadmaster.solvers.registry import available

    found = available()
    if arguments.json:
        terminal.json([{"name": s.name, "version": s.version, "features": list(s.features)} for s in found])
    elif found:
        terminal.data(table([[s.name, s.version, ", ".join(s.features)] for s in found], ["solver", "version", "can"]))
    else:
        terminal.say(f"none is installed. Install some {how_to_install('solver')}")
    return 0
