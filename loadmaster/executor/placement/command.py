"""The command behind ``loadmaster capture MODULE:FACTORY placement``: a model factory in, a placement problem out."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from loadmaster.executor.placement.capture import capture
from loadmaster.executor.steps import made_step
from loadmaster.executor.steps.factory import users_code
from loadmaster.executor.steps.made_step import make_step
from loadmaster.models.placement.problem import PlacementProblem


def parser() -> argparse.ArgumentParser:
    """Build the parser of ``loadmaster capture MODULE:FACTORY placement``."""
    p = made_step.parser("Capture a PyTorch model's training step, optimizer and all, as a trace of its blocks.")
    p.add_argument("--hardware", default="h200", help="whose times and link to host memory are estimated (h200)")
    made_step.add_model_arguments(p)
    return p


def run(arguments: argparse.Namespace) -> None:
    """Capture, write the document, and say what it needs; InputError if factory, device or model cannot be used."""

    def captured() -> PlacementProblem:
        made = make_step(arguments)
        with made.precision, users_code(arguments.factory):
            return capture(
                made.model,
                made.batch,
                made.loss,
                optimizer=made.optimizer,
                hardware=arguments.hardware,
                name=arguments.name,
            )

    made_step.write_captured(arguments, captured)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return made_step.finish(parser(), run, argv)
