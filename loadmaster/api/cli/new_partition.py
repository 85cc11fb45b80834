"""``new partition``: a known model from its shapes, split over a mesh of GPUs."""

from __future__ import annotations

import argparse
from dataclasses import replace

from loadmaster.api.cli.lazy import suggest
from loadmaster.api.cli.new_shapes import add_hardware
from loadmaster.errors import InputError
from loadmaster.models.documents import Document
from loadmaster.models.hardware import hardware
from loadmaster.models.partition.documents import write_problem
from loadmaster.models.partition.meshes import add_mesh, given_mesh, tell_of_inputs
from loadmaster.models.partition.tables.names import model, names

LISTING = "models"


def add_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the flags of a partition problem: model, mesh, batch, objective and hardware."""
    named = parser.add_argument(
        "--model", required=True, metavar="NAME", help="wresnet-152-10, rnn-10-8k, llama3-8b, ..."
    )
    suggest(named, names())
    add_mesh(parser)
    parser.add_argument("--batch", type=int, metavar="N", help="samples of the whole step (the model's own)")
    parser.add_argument("--sequence", type=int, metavar="N", help="tokens of a sample (the model's own)")
    parser.add_argument("--objective", choices=("time", "bytes"), default="time", help="what is minimized (time)")
    parser.add_argument(
        "--overlap", type=float, default=0.0, metavar="X", help="of parameters' collectives, hidden behind kernels (0)"
    )
    parser.add_argument("--no-replicas", action="store_true", help="every GPU stores an equal share of every tensor")
    add_hardware(parser, "whose times and memory")
    return parser


def build(arguments: argparse.Namespace) -> Document:
    """The problem document of a known model on a mesh of GPUs. Raises InputError naming the flag."""
    device = hardware(arguments.hardware, "--hardware")
    for flag in ("batch", "sequence"):
        if (value := getattr(arguments, flag)) is not None and value < 1:
            raise InputError(f"--{flag}", value, "is less than 1", "Give a whole number of at least 1.")
    if not 0 <= arguments.overlap < 1:
        raise InputError("--overlap", arguments.overlap, "is no share", "Give 0 or more, and less than 1.")
    axes = given_mesh(arguments)
    problem = model(arguments.model, axes, batch=arguments.batch, sequence=arguments.sequence, hardware=device)
    tell_of_inputs([tensor.shape for tensor in problem.tensors if tensor.role == "input"], axes)
    return write_problem(
        replace(
            problem,
            objective=arguments.objective,
            replicas=not arguments.no_replicas,
            overlap=arguments.overlap or None,
            budget_bytes=device.memory_bytes,
        )
    )
