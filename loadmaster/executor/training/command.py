"""The command behind ``loadmaster capture MODULE:FACTORY training``: a model factory in, a training problem out."""

from __future__ import annotations

import argparse
import contextlib
from contextlib import AbstractContextManager
from typing import Any, get_args

import torch

from loadmaster.executor.steps import made_step
from loadmaster.executor.steps.made_step import PRECISIONS, MadeStep
from loadmaster.executor.training.capture import Backend, can_measure, capture, measured_on
from loadmaster.models.training.problem import TrainingProblem


def parser() -> argparse.ArgumentParser:
    """Build the parser of ``loadmaster capture MODULE:FACTORY training``."""
    p = made_step.parser("Measure a PyTorch model's whole training step, updates and all, on a CUDA device.")
    p.add_argument("--clip-grad-norm", type=float, metavar="X", help="global norm that gradients are clipped to")
    p.add_argument("--accumulate", type=int, default=1, metavar="N", help="micro-batches before the updates (1)")
    p.add_argument("--backend", choices=get_args(Backend), default="inductor", help="what will run the blocks")
    words = "host memory for a plan of the whole step (half of what the host has)"
    p.add_argument("--host-memory", metavar="SIZE", help=words)
    words = "folder on a local disk, whose files may hold optimizer state (no files)"
    p.add_argument("--disk", metavar="FOLDER", help=words)
    made_step.add_model_arguments(p)
    return p


def run(arguments: argparse.Namespace) -> None:
    """Capture, write the document, and say what it needs; InputError if factory, device or model cannot be used."""
    # A model that the GPU has no room for is made on the CPU.
    made_on = torch.device(arguments.device)
    device = measured_on(made_on if can_measure(made_on) else "cuda")

    def captured(made: MadeStep) -> TrainingProblem:
        precision: AbstractContextManager[Any] = contextlib.nullcontext()
        if arguments.autocast is not None:
            precision = torch.autocast(device.type, PRECISIONS[arguments.autocast])
        with precision:
            return capture(
                *(made.model, made.batch, made.loss),
                optimizer=made.optimizer,
                device=device,
                clip_grad_norm=arguments.clip_grad_norm,
                accumulate=arguments.accumulate,
                backend=arguments.backend,
                host_memory_bytes=arguments.host_memory,
                disk=arguments.disk,
                name=arguments.name,
                progress=True,
            )

    made_step.write_step(arguments, captured)


main = made_step.command(parser, run)
