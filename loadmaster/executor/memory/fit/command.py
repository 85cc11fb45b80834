"""The command behind ``loadmaster fit``: a step is fitted here, and planned by the process that started this one.

Lines of JSON go out on standard output, see :mod:`loadmaster.executor.parent`: together with its questions,
``{"tried": {...}}`` and ``{"knob_tried": {...}}`` tell of a trial, ``{"fitted": {...}}`` of the end,
``{"measurement": {...}}`` of what its plan measured. What the model itself prints goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import pickle
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loadmaster.errors import LoadmasterError
from loadmaster.executor.memory.command import add_step_arguments, options_of
from loadmaster.executor.memory.fit.fitter import KNOB_TRIES, Fitter
from loadmaster.executor.memory.fit.knob import KnobTrial, describe_knob
from loadmaster.executor.memory.fit.side_by_side import measured_alone, side_by_side
from loadmaster.executor.memory.fit.state import Fitted
from loadmaster.executor.memory.fit.trials import Trial, describe
from loadmaster.executor.parent import Parent
from loadmaster.executor.steps.factory import report, users_code
from loadmaster.executor.steps.made_step import make_step
from loadmaster.executor.steps.resident import device_of
from loadmaster.executor.steps.timeline import expect_history, record_snapshot
from loadmaster.models.memory.measurement import write_measurement
from loadmaster.models.memory.plan import MemoryPlan
from loadmaster.models.memory.problem import MemoryProblem

INTERRUPTED = 130


def parser() -> argparse.ArgumentParser:
    """Parser of the arguments of the fit command."""
    p = argparse.ArgumentParser(prog="python -m loadmaster.executor.fit_command", description=__doc__)
    p.add_argument("factory", help="MODULE:FUNCTION returning (model, batch) or (model, batch, loss)")
    p.add_argument("--budget-bytes", required=True, help="what the measured peak must not exceed: bytes, 6GiB or 50%%")
    p.add_argument("--tries", type=int, default=3, help="plans that are run at most (3)")
    p.add_argument("--knob-tries", type=int, default=KNOB_TRIES, help="values of torch.compile's knob at most")
    p.add_argument("--fragmentation", choices=["ignore", "count"], default="ignore", help="count reserved bytes")
    p.add_argument("--fragmentation-reserve-bytes", type=int, default=0, help="of the budget, kept free")
    p.add_argument("--trace", type=Path, help="write the planned and the measured step as one Chrome trace")
    p.add_argument("--snapshot", type=Path, help="write the measured step's memory snapshot (CUDA)")
    p.add_argument("--no-verify", action="store_true", help="do not compare the step with plain PyTorch's")
    add_step_arguments(p)
    return p


def tried_document(tried: Trial) -> dict[str, Any]:
    """JSON document of a trial of a plan."""
    return {**asdict(tried), "kept": tried.kept, "time_error": tried.time_error, "text": describe(tried)}


def knob_document(tried: KnobTrial) -> dict[str, Any]:
    """JSON document of a trial of torch.compile's knob."""
    return {**asdict(tried), "kept": tried.kept, "text": describe_knob(tried)}


def run(arguments: argparse.Namespace, parent: Parent) -> None:
    """Fit, tell, and write what was asked for.

    Raises:
        InputError: the factory, the device or the model cannot be used.
        BudgetError: no plan keeps the budget.
    """
    made = make_step(arguments)
    if arguments.snapshot is not None:
        expect_history(device_of(made.model, made.batch))
    reserve = None if arguments.fragmentation == "count" else arguments.fragmentation_reserve_bytes
    with made.precision, users_code(arguments.factory):
        fitter = Fitter(
            made.model,
            made.batch,
            made.loss,
            options_of(arguments, made),
            fragmentation_reserve_bytes=reserve,
            verify=not arguments.no_verify,
            on_try=lambda tried: parent.tell({"tried": tried_document(tried)}),
            on_knob=lambda tried: parent.tell({"knob_tried": knob_document(tried)}),
        )
        fitted = fitter.fit(_planned_by(parent), arguments.budget_bytes, arguments.tries, arguments.knob_tries)
        _write(arguments, fitter, fitted)
    plain = None if fitted.plain is None else asdict(fitted.plain.record)
    told = {"chosen": fitted.chosen, "chosen_knob": fitted.chosen_knob, "plain": plain, "report": fitted.report}
    sha256 = None if fitted.problem is None else fitted.problem.sha256
    parent.tell({"fitted": {"problem_sha256": sha256, **told, "seconds": dict(fitted.seconds)}})
    if fitted.measurement is not None:
        parent.tell({"measurement": write_measurement(fitted.measurement)})


def _planned_by(parent: Parent) -> Callable[[MemoryProblem], MemoryPlan]:
    def planned(problem: MemoryProblem) -> MemoryPlan:
        plan = parent.plan(problem)
        assert isinstance(plan, MemoryPlan), "of a problem of this kind"
        return plan

    return planned


def _write(arguments: argparse.Namespace, fitter: Fitter, fitted: Fitted) -> None:
    if arguments.trace is not None:
        timeline = fitter.profiled(fitted.step)
        if fitted.problem is not None and fitted.plan is not None:
            trace = side_by_side(fitted.problem, fitted.plan, timeline)
        else:
            trace = measured_alone(type(fitted.step.step.model).__name__, timeline)
        arguments.trace.write_text(json.dumps(trace))
    if arguments.snapshot is not None:
        snapshot = fitter.alone(fitted.step, lambda step: record_snapshot(step, fitter.setting.device))
        arguments.snapshot.write_bytes(pickle.dumps(snapshot))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    arguments = parser().parse_args(argv)
    try:
        run(arguments, Parent.of_this_process())
    except LoadmasterError as error:
        return report(error, verbose=arguments.verbose)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0
