"""The command behind ``loadmaster capture``: a model factory in, a memory problem out."""

from __future__ import annotations

import argparse
from dataclasses import replace

from loadmaster.executor.memory.capture import CaptureOptions, capture_step
from loadmaster.executor.memory.run.backends import COMPILERS
from loadmaster.executor.steps import made_step
from loadmaster.executor.steps.made_step import MadeStep
from loadmaster.executor.steps.wrappers import PARALLEL
from loadmaster.models.memory.problem import MemoryProblem


def parser() -> argparse.ArgumentParser:
    """Parser of the arguments of ``loadmaster capture``."""
    p = made_step.parser("Capture a PyTorch model's training step as a problem document.")
    p.add_argument("--hardware", help="estimate costs for this device of the catalogue instead of measuring them")
    p.add_argument("--parallel", choices=PARALLEL, help="what will wrap the step, and holds memory of its own")
    p.add_argument("--ranks", type=int, default=1, help="ranks that share the batch; the plan is for one of them")
    made_step.add_model_arguments(p)
    p.add_argument("--backend", choices=list(COMPILERS), default="inductor", help="what will run the plan")
    p.add_argument("--offload", action="store_true", help="let plans send results to host memory over its link")
    p.add_argument("--gradients-held", action="store_true", help="gradients are added to, not dropped after a step")
    return p


def options_of(arguments: argparse.Namespace, made: MadeStep) -> CaptureOptions:
    """Capture options from the arguments of ``loadmaster capture`` and ``loadmaster fit``."""
    return CaptureOptions(
        optimizer=made.optimizer,
        backend=arguments.backend,
        host_link=arguments.offload,
        gradients_held=arguments.gradients_held,
        name=arguments.name,
        progress=True,
    )


def run(arguments: argparse.Namespace) -> None:
    """Capture, write the document, and say how much it needs; an InputError if factory, device or model are no use."""

    def captured(made: MadeStep) -> MemoryProblem:
        more = {name: getattr(arguments, name) for name in ("hardware", "parallel", "ranks")}
        options = replace(options_of(arguments, made), **more)
        return capture_step(made.model, made.batch, made.loss, options).problem()

    made_step.write_step(arguments, captured)


main = made_step.command(parser, run)
