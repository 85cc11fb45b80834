"""The command behind ``loadmaster capture``: a model factory in, a problem document out."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from loadmaster.errors import CancelledError, LoadmasterError
from loadmaster.executor.memory.capture import capture_step
from loadmaster.executor.memory.options import CaptureOptions
from loadmaster.executor.memory.run.backends import COMPILERS
from loadmaster.executor.steps.batch import AnyBatch
from loadmaster.executor.steps.factory import call_factory, device_named, report, users_code
from loadmaster.executor.steps.step import Loss
from loadmaster.executor.steps.wrappers import PARALLEL
from loadmaster.models.files import expect_writable, write_text
from loadmaster.models.memory.documents import write_problem

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "none": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.AdamW(parameters),
}
PRECISIONS = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    p = argparse.ArgumentParser(
        prog="loadmaster capture", description="Capture a PyTorch model's training step as a problem document."
    )
    p.add_argument("factory", metavar="MODULE:FACTORY", help="returns (model, batch) or (model, batch, loss)")
    p.add_argument("-o", "--output", metavar="PROBLEM.json", help="- or none: standard output")
    p.add_argument("--hardware", help="estimate costs for this device of the catalogue instead of measuring them")
    p.add_argument("--parallel", choices=PARALLEL, help="what will wrap the step, and holds memory of its own")
    p.add_argument("--ranks", type=int, default=1, help="ranks that share the batch; the plan is for one of them")
    add_step_arguments(p)
    return p


def add_step_arguments(p: argparse.ArgumentParser) -> None:
    """What says how a model trains."""
    p.add_argument("--name", help="name of the problem (default: the model's class)")
    p.add_argument("--device", default="cpu", help="where to build the model and trace it (default: cpu)")
    p.add_argument("--backend", choices=list(COMPILERS), default="inductor", help="what will run the plan")
    p.add_argument("--offload", action="store_true", help="let plans send results to host memory over its link")
    p.add_argument("--optimizer", choices=sorted(OPTIMIZERS), default="none", help="whose state counts as resident")
    p.add_argument("--autocast", choices=sorted(PRECISIONS), help="train under autocast in this precision")
    p.add_argument("--gradients-held", action="store_true", help="gradients are added to, not dropped after a step")
    p.add_argument("--verbose", action="store_true", help="the whole traceback of what fails in your own code")


@dataclass(frozen=True)
class MadeStep:
    """What a factory made, and how it trains."""

    model: nn.Module
    batch: AnyBatch
    loss: Loss | None
    optimizer: torch.optim.Optimizer
    precision: AbstractContextManager[Any]


def make_step(arguments: argparse.Namespace) -> MadeStep:
    """Call the factory.

    Raises:
        InputError: the factory or the device cannot be used.
    """
    device = device_named(arguments.device)
    model, batch, loss = call_factory(arguments.factory, device)
    precision: AbstractContextManager[Any] = contextlib.nullcontext()
    if arguments.autocast is not None:
        precision = torch.autocast(device.type, PRECISIONS[arguments.autocast])
    return MadeStep(model, batch, loss, OPTIMIZERS[arguments.optimizer](model.parameters()), precision)


def options_of(arguments: argparse.Namespace, made: MadeStep) -> CaptureOptions:
    """What :func:`add_step_arguments` says of a step's capture."""
    return CaptureOptions(
        optimizer=made.optimizer,
        backend=arguments.backend,
        host_link=arguments.offload,
        gradients_held=arguments.gradients_held,
        name=arguments.name,
        progress=True,
    )


def run(arguments: argparse.Namespace) -> None:
    """Capture, write the document, and say how much it needs.

    Raises:
        InputError: the factory, the device or the model cannot be used.
    """
    output = None if arguments.output in (None, "-") else arguments.output
    expect_writable(output, "-o")
    # What the model itself prints is no document.
    with contextlib.redirect_stdout(sys.stderr):
        made = make_step(arguments)
        with made.precision, users_code(arguments.factory):
            options = replace(
                options_of(arguments, made),
                hardware=arguments.hardware,
                parallel=arguments.parallel,
                ranks=arguments.ranks,
            )
            problem = capture_step(made.model, made.batch, made.loss, options).problem()
    text = json.dumps(write_problem(problem)) + "\n"
    if output is None:
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        write_text(output, text, "-o")
    sys.stderr.write(f"{problem.summary()}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    arguments = parser().parse_args(argv)
    try:
        run(arguments)
    except LoadmasterError as error:
        return report(error, verbose=arguments.verbose)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return CancelledError.exit_status
    return 0
