"""The command behind ``loadmaster capture MODULE:FACTORY placement``: a model factory in, a placement problem out."""

from __future__ import annotations

import argparse

from loadmaster.executor.placement.capture import capture
from loadmaster.executor.steps import made_step
from loadmaster.executor.steps.made_step import MadeStep
from loadmaster.models.placement.problem import PlacementProblem


def parser() -> argparse.ArgumentParser:
    """Build the parser of ``loadmaster capture MODULE:FACTORY placement``."""
    p = made_step.parser("Capture a PyTorch model's training step, optimizer and all, as a trace of its blocks.")
    p.add_argument("--hardware", default="h200", help="whose times and link to host memory are estimated (h200)")
    made_step.add_model_arguments(p)
    return p


def run(arguments: argparse.Namespace) -> None:
    """Capture, write the document, and say what it needs; InputError if factory, device or model cannot be used."""

    def captured(made: MadeStep) -> PlacementProblem:
        more = {"optimizer": made.optimizer, "hardware": arguments.hardware, "name": arguments.name}
        return capture(made.model, made.batch, made.loss, **more)

    made_step.write_step(arguments, captured)


main = made_step.command(parser, run)
