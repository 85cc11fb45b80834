"""Models from a user's factory, and how they train: arguments and ending that all capture commands share."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from loadmaster.errors import CancelledError, InputError, LoadmasterError
from loadmaster.executor.steps.batch import AnyBatch
from loadmaster.executor.steps.factory import call_factory, device_named, report, users_code
from loadmaster.executor.steps.step import Loss
from loadmaster.models.files import expect_writable, write_text
from loadmaster.models.kinds import Problem, write_problem
from loadmaster.models.summary import summarize

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "none": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.AdamW(parameters),
}
PRECISIONS = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def parser(purpose: str) -> argparse.ArgumentParser:
    """Make the parser of arguments that the capture command of every kind takes."""
    p = argparse.ArgumentParser(prog="loadmaster capture", description=purpose)
    p.add_argument("factory", metavar="MODULE:FACTORY", help="returns (model, batch) or (model, batch, loss)")
    p.add_argument("-o", "--output", metavar="PROBLEM.json", help="- or none: standard output")
    return p


def add_model_arguments(p: argparse.ArgumentParser) -> None:
    """Add the arguments that say how a model is made and trains."""
    p.add_argument("--name", help="name of the problem (default: the model's class)")
    p.add_argument("--device", default="cpu", help="where to build the model and trace it (default: cpu)")
    p.add_argument("--optimizer", choices=sorted(OPTIMIZERS), default="none", help="whose state counts as resident")
    p.add_argument("--autocast", choices=sorted(PRECISIONS), help="train under autocast in this precision")
    p.add_argument("--verbose", action="store_true", help="the whole traceback of what fails in your own code")


@dataclass(frozen=True)
class MadeStep:
    """Model, batch and loss that a factory made, with optimizer and precision."""

    model: nn.Module
    batch: AnyBatch
    loss: Loss | None
    optimizer: torch.optim.Optimizer
    precision: AbstractContextManager[Any]


def make_step(arguments: argparse.Namespace, made_on: str | None = None) -> MadeStep:
    """Call the factory that the arguments name, on the device to train on unless another one is given; raises
    InputError if it or a device cannot be used."""
    device = device_named(arguments.device)
    model, batch, loss = call_factory(
        arguments.factory, device if made_on is None else device_named(made_on, "--made-on")
    )
    precision: AbstractContextManager[Any] = contextlib.nullcontext()
    if arguments.autocast is not None:
        precision = torch.autocast(device.type, PRECISIONS[arguments.autocast])
    return MadeStep(model, batch, loss, OPTIMIZERS[arguments.optimizer](model.parameters()), precision)


def write_captured(arguments: argparse.Namespace, captured: Callable[[], Problem]) -> None:
    """Capture a problem, write its document, and print its summary to stderr; InputError if that cannot be written."""
    output = None if arguments.output in (None, "-") else arguments.output
    expect_writable(output, "-o")
    # What the model itself prints is not part of the document.
    with contextlib.redirect_stdout(sys.stderr):
        problem = captured()
    text = json.dumps(write_problem(problem)) + "\n"
    if output is None:
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        write_text(output, text, "-o")
    sys.stderr.write(f"{summarize(problem)}\n")


def write_step(arguments: argparse.Namespace, capture: Callable[[MadeStep], Problem]) -> None:
    """Make a step as the arguments say, capture it in its precision, and write the problem: :func:`write_captured`."""

    def captured() -> Problem:
        made = make_step(arguments)
        with made.precision, users_code(arguments.factory):
            return capture(made)

    write_captured(arguments, captured)


def command(
    parser: Callable[[], argparse.ArgumentParser], run: Callable[[argparse.Namespace], None]
) -> Callable[[Sequence[str] | None], int]:
    """Make the main function of a command, which returns its exit status, and reports Loadmaster's errors on stderr."""

    def main(argv: Sequence[str] | None = None) -> int:
        arguments = parser().parse_args(argv)
        try:
            run(arguments)
        except LoadmasterError as error:
            return report(_by_flag(error, arguments), verbose=arguments.verbose)
        except KeyboardInterrupt:
            sys.stderr.write("interrupted\n")
            return CancelledError.exit_status
        return 0

    return main


def _by_flag(error: LoadmasterError, arguments: argparse.Namespace) -> LoadmasterError:
    """Return an error about an argument of a function by the name of the flag that gave it."""
    if type(error) is not InputError:
        return error
    flag = next(
        (name for name in vars(arguments) if error.field in (name, f"{name}_bytes") and name != "factory"), None
    )
    if flag is None:
        return error
    named = InputError(f"--{flag.replace('_', '-')}", error.value, error.problem, error.remedy)
    named.__cause__ = error.__cause__
    return named
