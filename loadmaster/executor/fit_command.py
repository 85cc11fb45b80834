"""The process behind ``loadmaster fit``: a step is fitted here, and planned by the process that started this one.

Lines of JSON go out on standard output, see :mod:`loadmaster.executor.command`: together with its questions,
``{"tried": {...}}`` and ``{"knob_tried": {...}}`` tell of a trial, ``{"fitted": {...}}`` of the end,
``{"measurement": {...}}`` of what its plan measured, and ``{"timeline": {...}}`` of a whole step's. What the model
itself prints goes to standard error.

A whole step is tried by its first steps, as in training: the model is the command's own, and goes with it.
"""

from __future__ import annotations

import argparse
import json
import pickle
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from loadmaster.errors import BudgetError, LoadmasterError
from loadmaster.executor.command import Parent
from loadmaster.executor.fitting import Fitting
from loadmaster.executor.memory.command import options_of
from loadmaster.executor.memory.fit.fitted import Fitted
from loadmaster.executor.memory.fit.fitter import KNOB_TRIES, Fitter
from loadmaster.executor.memory.fit.knob import describe_knob
from loadmaster.executor.memory.fit.report import measured_alone, side_by_side
from loadmaster.executor.memory.fit.trials import StepTrial
from loadmaster.executor.steps.batch import batch_of
from loadmaster.executor.steps.factory import report, users_code
from loadmaster.executor.steps.made_step import MadeStep, make_step
from loadmaster.executor.steps.resident import device_of
from loadmaster.executor.steps.timeline import expect_history, record, record_snapshot
from loadmaster.executor.training.capture import moved
from loadmaster.executor.training.train import PlannedTraining
from loadmaster.models.fit_record import TryRecord, describe
from loadmaster.models.step_measurement import write_measurement
from loadmaster.models.units import show_bytes

# Flags of activations alone: the value that each has when it is not given, by its name.
_OF_ACTIVATIONS = {"gradients_held": False, "offload": False, "knob_tries": KNOB_TRIES, "no_verify": False}


def run(arguments: argparse.Namespace, parent: Parent) -> None:
    """Fit, tell, and write what was asked for. InputError: the factory, the device or the model cannot be used.
    BudgetError: no plan keeps the budget."""

    def tell(what: str, tried: StepTrial, **more: Any) -> None:
        parent.tell({what: {**asdict(tried), "kept": tried.kept, **more}})

    made = make_step(arguments, arguments.made_on)
    # Without --made-on the factory has the last word on where the model is.
    device = None if arguments.made_on is None else torch.device(arguments.device)
    if arguments.snapshot is not None:
        expect_history(device or device_of(made.model, made.batch))
    unused = [f"--{name.replace('_', '-')}" for name, no in _OF_ACTIVATIONS.items() if getattr(arguments, name) != no]
    with made.precision, users_code(arguments.factory):
        fitting = Fitting(
            *(made.model, made.batch, made.loss),
            budget_bytes=arguments.budget,
            planner=parent.plan,
            optimizer=None if arguments.optimizer == "none" else made.optimizer,
            device=device,
            clip_grad_norm=arguments.clip_grad_norm,
            clip_grad_value=arguments.clip_grad_value,
            accumulate=arguments.accumulate,
            backend=arguments.backend,
            host_memory_bytes=arguments.host_memory,
            disk=arguments.disk,
            fragmentation_reserve_bytes=arguments.fragmentation,
            tries=arguments.tries,
            name=arguments.name,
            progress=True,
            unused=unused,
        )

        def make_fitter() -> Fitter:
            held = arguments.gradients_held or arguments.accumulate > 1
            return Fitter(
                *(made.model, made.batch, made.loss),
                replace(options_of(arguments, made), gradients_held=held),
                fragmentation_reserve_bytes=arguments.fragmentation,
                verify=not arguments.no_verify,
                on_try=lambda tried: tell("tried", tried, time_error=tried.time_error, text=describe(tried.record)),
                on_knob=lambda tried: tell("knob_tried", tried, text=describe_knob(tried)),
            )

        fitted, fitter = fitting.run(make_fitter, arguments.knob_tries, gradients_held=arguments.gradients_held)
        if isinstance(fitted, PlannedTraining):
            one_step = _training(made, fitted, arguments.accumulate)
            _try_whole(parent, fitted, one_step)
            told: dict[str, Any] = {"chosen_knob": None, "plain": None, "seconds": {}}
        else:
            assert fitter is not None
            _write(arguments, fitter, fitted)
            plain = None if fitted.plain is None else asdict(fitted.plain.record)
            told = {"chosen_knob": fitted.chosen_knob, "plain": plain, "seconds": dict(fitted.seconds)}
        sha256 = None if fitted.problem is None else fitted.problem.sha256
        told |= {"chosen": fitted.chosen, "report": fitted.report}
        parent.tell({"fitted": {"problem_sha256": sha256, **told}})
        if fitted.measurement is not None:
            parent.tell({"measurement": write_measurement(fitted.measurement)})
        if isinstance(fitted, PlannedTraining):
            _look(arguments, parent, fitted, one_step)  # last: a step that is looked at takes longer


def _try_whole(parent: Parent, fitted: PlannedTraining, one_step: Callable[[], None]) -> None:
    """Train until no step is held against the budget any more, and tell of each plan. BudgetError: no plan keeps the
    budget."""
    device, told = fitted.step.device, 0
    try:
        while not (fitted.is_final and fitted.step.run.used_bytes <= fitted.plan.budget_bytes):
            one_step()
            if told < len(fitted.step.runs) - 1:  # it was planned again
                _tell_whole(parent, fitted.tries[told])
                told += 1
    except torch.OutOfMemoryError as error:
        budget, planned = fitted.plan.budget_bytes, fitted.plan.check["peak_bytes"]
        message = (
            f"budget_bytes: the device ran out of memory where {show_bytes(planned)} were planned. Give a smaller "
            f"budget than {show_bytes(budget)}, or free what others hold."
        )
        raise BudgetError(message, budget, planned) from error
    finally:
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # the times of steps that are over count
        for tried in fitted.tries[told:]:
            _tell_whole(parent, tried)


def _look(arguments: argparse.Namespace, parent: Parent, fitted: PlannedTraining, one_step: Callable[[], None]) -> None:
    """Record what was asked for of one more step, each."""
    device = fitted.step.device
    if arguments.trace is not None:
        parent.tell({"timeline": measured_alone(fitted.plan.name, record(one_step, device))})
    if arguments.snapshot is not None:
        Path(arguments.snapshot).write_bytes(pickle.dumps(record_snapshot(one_step, device)))


def _training(made: MadeStep, fitted: PlannedTraining, accumulate: int) -> Callable[[], None]:
    """Make a function that trains by one step, with the factory's batch in each of its passes."""
    batch = moved(batch_of(made.batch), fitted.step.device)

    def one_step() -> None:
        for _ in range(accumulate):
            loss = fitted.step(*batch.args, **batch.kwargs) / accumulate
            loss.backward()
        made.optimizer.step()
        made.optimizer.zero_grad()

    return one_step


def _tell_whole(parent: Parent, tried: TryRecord) -> None:
    """Tell of a plan of the whole step, as of one of activations alone."""
    found = asdict(tried)
    measured = {name: found.pop(name) for name in ("peak_bytes", "step_us", "ran_out")}
    more = {"measured": measured, "time_error": tried.time_error, "text": describe(tried)}
    parent.tell({"tried": found | more})


def _write(arguments: argparse.Namespace, fitter: Fitter, fitted: Fitted) -> None:
    if arguments.trace is not None:
        timeline = fitter.profiled(fitted.step)
        if fitted.problem is not None and fitted.plan is not None:
            trace = side_by_side(fitted.problem, fitted.plan, timeline)
        else:
            trace = measured_alone(type(fitted.step.step.model).__name__, timeline)
        Path(arguments.trace).write_text(json.dumps(trace))
    if arguments.snapshot is not None:
        snapshot = fitter.alone(fitted.step, lambda step: record_snapshot(step, fitter.runs.device))
        Path(arguments.snapshot).write_bytes(pickle.dumps(snapshot))


def main(_arguments: Sequence[str] = ()) -> int:
    """Run the command; returns its exit status. The task has the arguments."""
    parent = Parent.of_this_process()
    arguments = argparse.Namespace(**parent.hear())
    try:
        run(arguments, parent)
    except LoadmasterError as error:
        return report(error, verbose=arguments.verbose)
    return 0
