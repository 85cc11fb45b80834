"""The command behind ``loadmaster capture``: a model factory in, a problem document out."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from loadmaster.errors import InputError, LoadmasterError
from loadmaster.executor.memory.capture import capture_step
from loadmaster.executor.memory.options import CaptureOptions
from loadmaster.executor.memory.run.backends import COMPILERS
from loadmaster.executor.steps.batch import AnyBatch
from loadmaster.executor.steps.step import Loss
from loadmaster.executor.steps.wrappers import PARALLEL
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
    p.add_argument("-o", "--output", type=Path, help="where to write the document (default: standard output)")
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


@dataclass(frozen=True)
class MadeStep:
    """What a factory made, and how it trains."""

    model: nn.Module
    batch: AnyBatch
    loss: Loss | None
    optimizer: torch.optim.Optimizer
    precision: AbstractContextManager[Any]


def load_factory(spec: str) -> Callable[[], tuple[Any, ...]]:
    """The function that ``MODULE:FUNCTION`` names; modules of the current directory are found.

    Raises:
        InputError: no such module or function.
    """
    module_name, _, function_name = spec.partition(":")
    remedy = "Give MODULE:FUNCTION, for example examples.resnet50:small."
    if not module_name or not function_name:
        raise InputError("factory", spec, "is not MODULE:FUNCTION", remedy)
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise InputError("factory", spec, f"cannot be imported: {error}", remedy) from None
    function = getattr(module, function_name, None)
    if not callable(function):
        raise InputError("factory", spec, f"{module_name} has no function {function_name}", remedy)
    factory: Callable[[], tuple[Any, ...]] = function
    return factory


def make_step(arguments: argparse.Namespace) -> MadeStep:
    """Call the factory.

    Raises:
        InputError: the factory or the device cannot be used.
    """
    factory = load_factory(arguments.factory)
    try:
        device = torch.device(arguments.device)
        with device:
            made = factory()
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            "device", arguments.device, f"the model cannot be built there: {error}", "Use a device that is present."
        ) from error
    if not isinstance(made, tuple) or len(made) not in (2, 3):
        raise InputError(
            "factory", type(made).__name__, "returned no tuple of two or three", "Return (model, batch, loss)."
        )
    model, batch, loss = made if len(made) == 3 else (*made, None)
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
    )


def run(arguments: argparse.Namespace) -> None:
    """Capture and write the document.

    Raises:
        InputError: the factory, the device or the model cannot be used.
    """
    made = make_step(arguments)
    with made.precision:
        options = replace(
            options_of(arguments, made),
            hardware=arguments.hardware,
            parallel=arguments.parallel,
            ranks=arguments.ranks,
        )
        problem = capture_step(made.model, made.batch, made.loss, options).problem()
    text = json.dumps(write_problem(problem))
    if arguments.output is None:
        sys.stdout.write(text + "\n")
    else:
        arguments.output.write_text(text + "\n")
    sys.stderr.write(f"{problem.name}: {len(problem.forward)} forward and {len(problem.backward)} backward operators\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    try:
        run(parser().parse_args(argv))
    except LoadmasterError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_status
    return 0
