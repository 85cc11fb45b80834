"""``new training``: the whole training step of a known model on one GPU, from its shapes."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from loadmaster.api.cli.lazy import suggest
from loadmaster.api.cli.new_shapes import add_hardware
from loadmaster.api.columns import table
from loadmaster.errors import InputError
from loadmaster.models.documents import Document
from loadmaster.models.hardware import hardware
from loadmaster.models.synthetic import SHAPES
from loadmaster.models.training import presets
from loadmaster.models.training.documents import write_problem
from loadmaster.models.units import parse_bytes


def add_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the flags of a training problem: model, batch, optimizer and host. Returns the parser."""
    named = parser.add_argument("--model", required=True, metavar="NAME", help="llama3-8b, gpt3-6.7b, ...")
    suggest(named, SHAPES)
    words = f"sequences of a micro-batch ({presets.BATCH})"
    parser.add_argument("--batch", type=int, default=presets.BATCH, metavar="N", help=words)
    parser.add_argument("--sequence", type=int, metavar="N", help="tokens of a sequence (the model's own)")
    parser.add_argument("--micro-batches", type=int, default=1, metavar="N", help="passes before the update (1)")
    parser.add_argument("--optimizer", choices=list(presets.OPTIMIZERS), default="adamw", help="(adamw)")
    parser.add_argument("--clip-grad-norm", action="store_true", help="updates wait for the norm of all gradients")
    add_hardware(parser, "whose times, memory and host link")
    parser.add_argument("--host-memory", metavar="SIZE", help="host memory for the plan (more than is needed)")
    gbps = presets.HOST_UPDATE_GBPS
    words = f"what updates on the host read and write, GB/s; 0: it runs none ({gbps:g})"
    parser.add_argument("--host-update-gbps", type=float, default=gbps, metavar="X", help=words)
    words = "what the host's disk writes and reads, GB/s: files there may hold optimizer state (no files)"
    parser.add_argument("--disk-gbps", metavar="WRITE,READ", help=words)
    parser.add_argument("--disk-capacity", metavar="SIZE", help="room in files (more than is needed)")
    words = "how much can be written to the disk in its life (no end)"
    parser.add_argument("--disk-endurance", metavar="SIZE", help=words)
    return parser


def build(arguments: argparse.Namespace) -> Document:
    """The problem document of a known model's training step on one GPU. Raises InputError naming the flag."""
    device, gbps = hardware(arguments.hardware, "--hardware"), arguments.host_update_gbps
    if not 0 <= gbps <= 1e6:
        raise InputError("--host-update-gbps", gbps, "is no rate", "Give GB/s, or 0 for no updates on the host.")
    host = arguments.host_memory
    problem = presets.model(
        arguments.model,
        device,
        batch=arguments.batch,
        sequence=arguments.sequence,
        micro_batches=arguments.micro_batches,
        optimizer=arguments.optimizer,
        clip_grad_norm=arguments.clip_grad_norm,
        host_bytes=None if host is None else parse_bytes(host, "--host-memory"),
        host_update_gbps=gbps or None,
        **_disk(arguments),
    )
    return write_problem(replace(problem, budget_bytes=device.memory_bytes))


def _disk(arguments: argparse.Namespace) -> dict[str, Any]:
    """The disk as arguments of the preset."""
    flags = {"disk_bytes": "--disk-capacity", "disk_endurance_bytes": "--disk-endurance"}
    given = {name: getattr(arguments, flag[2:].replace("-", "_")) for name, flag in flags.items()}
    if arguments.disk_gbps is None:
        for name, size in given.items():
            if size is not None:
                raise InputError(flags[name], size, "is of a disk of unknown rates", "Give --disk-gbps too.")
        return {}
    try:
        write_gbps, read_gbps = map(float, arguments.disk_gbps.split(","))
    except ValueError:
        write_gbps = read_gbps = 0.0
    if not (0 < write_gbps <= 1e6 and 0 < read_gbps <= 1e6):
        remedy = "Give GB/s of writes and of reads, such as 6,12."
        raise InputError("--disk-gbps", arguments.disk_gbps, "is no pair of rates", remedy)
    sizes = {name: None if size is None else parse_bytes(size, flags[name]) for name, size in given.items()}
    return {"disk_gbps": (write_gbps, read_gbps), **sizes}


def listing() -> str:
    """List the models with their shapes."""
    rows = [
        [name, f"{presets.parameters(shape) / 1e9:.2f}", str(shape.layers), str(shape.hidden), str(shape.sequence)]
        for name, shape in SHAPES.items()
    ]
    return table(rows, ["model", "parameters, 1e9", "layers", "hidden", "tokens"])
