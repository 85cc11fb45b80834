"""Command behind ``loadmaster capture MODULE:FACTORY partition``: a model factory in, a partition problem out."""

from __future__ import annotations

import argparse
from typing import Any

from loadmaster.executor.partition.capture import OVERLAP, capture
from loadmaster.executor.steps import made_step
from loadmaster.executor.steps.made_step import MadeStep
from loadmaster.models.hardware import hardware
from loadmaster.models.partition.meshes import add_mesh, given_mesh
from loadmaster.models.partition.problem import PartitionProblem


def parser() -> argparse.ArgumentParser:
    """Make the parser of the command's arguments."""
    p = made_step.parser("Capture a PyTorch model's training step, optimizer and all, as operators that can be split.")
    add_mesh(p)
    p.add_argument("--hardware", default="h200", help="whose times and memory are taken (h200)")
    p.add_argument(
        "--overlap", type=float, default=OVERLAP, metavar="X", help=f"of parameters' collectives, hidden ({OVERLAP})"
    )
    p.add_argument("--strict", action="store_true", help="refuse operators that would run whole on every GPU")
    made_step.add_model_arguments(p)
    return p


def run(arguments: argparse.Namespace) -> None:
    """Capture a partition problem, write its document, and print its summary to stderr; InputError if it fails."""
    axes = given_mesh(arguments)
    device = hardware(arguments.hardware)

    def captured(made: MadeStep) -> PartitionProblem:
        given: dict[str, Any] = {name: getattr(arguments, name) for name in ("hardware", "overlap", "name", "strict")}
        more: dict[str, Any] = {"axes": axes, "optimizer": made.optimizer, "budget_bytes": device.memory_bytes}
        return capture(made.model, made.batch, made.loss, **given, **more)

    made_step.write_step(arguments, captured)


main = made_step.command(parser, run)
