"""``fit``: a plan of activations alone, or of the whole step, that keeps its budget on this machine, by measurement.

The model runs in a process of its own (this floor has no torch), which asks for a plan, runs it, measures it, and asks
again with a corrected problem until the measured peak keeps the budget. Planning happens here, or on a server.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from typing import Any

from loadmaster.api.cli.executing import Plans, converse, expect_torch
from loadmaster.api.cli.files import expect_apart, write_json
from loadmaster.api.cli.planning import add_options, envelope, planning_options
from loadmaster.api.cli.server import add_server, connect
from loadmaster.api.cli.terminal import Terminal
from loadmaster.api.columns import table
from loadmaster.api.report.views import view_of, views_of
from loadmaster.errors import InputError, LoadmasterError
from loadmaster.models.documents import PROBLEM_SCHEMA, Document, load_document
from loadmaster.models.files import expect_writable, write_text
from loadmaster.models.kind import resolve
from loadmaster.models.kinds import Plan, Problem, kind_named, limit_of, read_problem, write_plan, write_problem
from loadmaster.models.units import parse_bytes, show_bytes, show_cost, show_share

MEASURED = "measured"
_WRITTEN_HERE = {"output": "-o", "problem": "--problem", "measured": "--measured"}
_WRITTEN_THERE = {"trace": "--trace", "snapshot": "--snapshot"}


def fit_arguments(fit: argparse.ArgumentParser) -> None:
    """Add the arguments of ``fit`` to its parser."""
    fit.description = _fit.__doc__
    fit.add_argument("factory", metavar="MODULE:FACTORY", help="returns (model, batch) or (model, batch, loss)")
    budget = f"what the measured peak must not exceed: {limit_of('memory').help}"
    fit.add_argument("--budget", metavar="SIZE", required=True, help=budget)
    fit.add_argument("--tries", type=int, default=3, metavar="N", help="plans that are run at most (3)")
    knob = "values of torch.compile's own knob that are run at most beside the plans; 0: plans alone (4)"
    fit.add_argument("--knob-tries", type=int, default=4, metavar="N", help=knob)
    fit.add_argument(
        "--fragmentation",
        default="0",
        metavar="SIZE",
        help=f"of the budget, kept free for what the allocator reserves; or {MEASURED}: count what it does reserve (0)",
    )
    fit.add_argument("--name", help="name of the problem (the model's class)")
    fit.add_argument("--device", default="cpu", help="where the model trains (cpu)")
    made = "where the factory makes the model, if not there: cpu, for one that the GPU has no room for"
    fit.add_argument("--made-on", metavar="DEVICE", help=made)
    fit.add_argument("--backend", choices=["inductor", "eager"], default="inductor", help="what runs the plan")
    fit.add_argument("--optimizer", choices=["adam", "momentum", "none"], default="none", help="whose state counts")
    fit.add_argument("--autocast", choices=["bfloat16", "float16"], help="train under autocast in this precision")
    norm = "global norm that gradients are clipped to; a plan of the whole step has to know"
    fit.add_argument("--clip-grad-norm", type=float, metavar="X", help=norm)
    value = "most of each value of the gradients, either way, likewise"
    fit.add_argument("--clip-grad-value", type=float, metavar="X", help=value)
    fit.add_argument("--accumulate", type=int, default=1, metavar="N", help="micro-batches before the updates (1)")
    words = "host memory for a plan of the whole step (half of what the host has)"
    fit.add_argument("--host-memory", metavar="SIZE", help=words)
    words = "folder on a local disk, whose files may hold optimizer state (no files)"
    fit.add_argument("--disk", metavar="FOLDER", help=words)
    fit.add_argument("--gradients-held", action="store_true", help="gradients are added to, not dropped after a step")
    said = "hand the step out without holding its loss and gradients against one step of plain PyTorch"
    fit.add_argument("--no-verify", action="store_true", help=said)
    fit.add_argument("--offload", action="store_true", help="let plans send results to host memory over its link")
    fit.add_argument(
        "-o",
        "--output",
        metavar="PLAN.json",
        help="write the plan here, and next to it its problem and what it measured",
    )
    fit.add_argument("--problem", metavar="PROBLEM.json", help="write the corrected problem here (PLAN.problem.json)")
    said = "write what the plan measured here, for reports (PLAN.measured.json)"
    fit.add_argument("--measured", metavar="MEASURED.json", help=said)
    fit.add_argument("--force", action="store_true", help="write over problems that are there")
    fit.add_argument("--trace", metavar="TRACE.json", help="write the planned and the measured step as one trace")
    fit.add_argument("--snapshot", metavar="MEASURED.pickle", help="write a measured memory snapshot (CUDA)")
    fit.add_argument("--verbose", action="store_true", help="the whole traceback of what fails in your own code")
    own = [action.dest for action in fit._actions if action.dest != "help"]  # the other process gets these, as they are
    add_options(fit)
    add_server(fit)
    fit.add_argument("--json", action="store_true", help="print the plan without its schedule, and the tries, as JSON")
    fit.set_defaults(run=_fit, own=own)


def _fit(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Plan a model under a byte budget, run the plan here, and correct and plan again until the budget is kept.

    Activations alone are planned, and torch.compile's own partition is run as well, and taken where it is faster. With
    an optimizer and on CUDA the whole step is planned where parameters, gradients and optimizer state take more than
    half of the budget, or where nothing else keeps it.
    """
    expect_torch()
    if not arguments.force:
        for flag, path in (("-o", arguments.output), ("--problem", arguments.problem)):
            _expect_no_problem(path, flag)
    if arguments.output not in (None, "-"):
        # fit makes these names up: a file there belongs to the plan that is written again.
        for name in ("problem", "measured"):
            if getattr(arguments, name) is None:
                setattr(arguments, name, f"{os.path.splitext(arguments.output)[0]}.{name}.json")
    written = {flag: getattr(arguments, name) for name, flag in (_WRITTEN_HERE | _WRITTEN_THERE).items()}
    for flag, path in written.items():
        expect_writable(path, flag)
    expect_apart(written, {})
    if arguments.tries < 1:
        raise InputError("--tries", arguments.tries, "leaves nothing to run", "Allow at least one try.")
    if arguments.knob_tries < 0:
        raise InputError("--knob-tries", arguments.knob_tries, "is no number of tries", "Give 0 for plans alone.")
    for flag, clips_to in (
        ("--clip-grad-norm", arguments.clip_grad_norm),
        ("--clip-grad-value", arguments.clip_grad_value),
    ):
        if clips_to is not None and arguments.optimizer == "none":
            raise InputError(flag, clips_to, "needs the optimizer, whose step clips", "Give --optimizer.")
    session = _Session(arguments, terminal)
    return converse("loadmaster.executor.fit_command:main", _task(arguments), session.receive) or session.finish()


def _expect_no_problem(path: str | None, flag: str) -> None:
    """Refuse to write over a problem that somebody captured, as plans for it may exist. Raises InputError naming the
    flag."""
    if path is None or not os.path.isfile(path):
        return
    try:
        schema = load_document(path).get("schema")
    except InputError:
        return  # something else: an output file from before
    if schema == PROBLEM_SCHEMA:
        raise InputError(flag, path, "holds a problem already", "Write to another file, or over it with --force.")


def _task(arguments: argparse.Namespace) -> dict[str, Any]:
    """The task of the process that runs the model: the flags of its own, and what is left free of the budget in bytes.
    Raises InputError naming the flag."""
    limit_of("memory").read(arguments.budget, "--budget")  # refused here: a share of what is known to the process only
    given = arguments.fragmentation
    reserve_bytes = None if given == MEASURED else 0 if given == "0" else parse_bytes(given, "--fragmentation")
    return {name: getattr(arguments, name) for name in arguments.own} | {"fragmentation": reserve_bytes}


class _Session:
    """The conversation with the process that runs the model: what it says, and the plans it is given."""

    def __init__(self, arguments: argparse.Namespace, terminal: Terminal) -> None:
        self._arguments, self._terminal = arguments, terminal
        self._options = planning_options(arguments, limit=None)
        self._plans = Plans(arguments, terminal)
        self._tries: list[dict[str, Any]] = []
        self._knob_tries: list[dict[str, Any]] = []
        self._fitted: dict[str, Any] | None = None
        self._measured: dict[str, Any] | None = None
        self._timeline: dict[str, Any] | None = None

    def receive(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """Take one message; returns the answer, if it wants one."""
        if "problem" in message:
            problem = read_problem(message["problem"])
            count = ", ".join(f"{what} {number}" for what, number in problem.sizes.items())
            budget = show_bytes(limit_of(problem.kind).stated(problem) or 0)
            self._terminal.say(f"planning {problem.name} ({problem.kind}): {count}, under {budget}")
            return self._plans.answer(problem, self._options)
        if "tried" in message:
            self._tries.append(message["tried"])
            self._terminal.say(f"try {len(self._tries)}: {message['tried']['text']}")
        elif "knob_tried" in message:
            self._knob_tries.append(message["knob_tried"])
            self._terminal.say(f"torch.compile, try {len(self._knob_tries)}: {message['knob_tried']['text']}")
        elif "measurement" in message:
            self._measured = message["measurement"]
        elif "timeline" in message:
            self._timeline = message["timeline"]
        else:
            self._fitted = message["fitted"]
        return None

    def finish(self) -> int:
        if self._fitted is None:
            raise LoadmasterError("the process that runs the model ended without an answer")
        arguments, terminal = self._arguments, self._terminal
        problem, plan, plan_id = self._plans.made.get(self._fitted["problem_sha256"], (None, None, None))
        if problem is not None and plan is not None:
            self._write(problem, plan)
            self._write_trace(problem, plan)
            if plan_id is not None and self._measured is not None:
                self._send(plan_id, self._measured)
        elif arguments.output is not None:
            terminal.say("-o: the step runs no plan, and none is written. For plans alone: --knob-tries 0")
        if arguments.json:
            told = {"plan": None if plan is None else envelope(plan), "tries": self._tries}
            terminal.json({**told, "knob_tries": self._knob_tries, **self._fitted})
        elif arguments.output != "-":
            if plan is not None:
                terminal.data(views_of(plan.kind).summary(plan) + "\n")
            terminal.data(self._table())
        if not arguments.json:
            terminal.say(self._fitted["report"])
        for name in _WRITTEN_THERE:
            if getattr(arguments, name) is not None:
                terminal.say(f"{name}: {getattr(arguments, name)}")
        return 0

    def _write(self, problem: Problem, plan: Plan) -> None:
        output, beside, terminal = self._arguments.output, self._arguments.problem, self._terminal
        measured = self._arguments.measured
        if output is not None:
            write_json(output, write_plan(plan), terminal)
        if beside is not None:
            write_json(beside, write_problem(problem), terminal, "--problem")
            if beside != "-":
                terminal.say(f"problem: {beside}")
        if measured is not None and self._measured is not None:
            write_json(measured, self._measured, terminal, "--measured")
            if measured != "-":
                terminal.say(f"measured: {measured} (loadmaster show draws it over the plan)")
        elif measured is not None:
            terminal.say("--measured: the device had no room for a profiled step, and nothing is written")

    def _write_trace(self, problem: Problem, plan: Plan) -> None:
        """Write the planned step and the measured one as one trace, where the other process has not done it."""
        if self._timeline is None:
            return
        trace: dict[str, Any] = resolve(f"{kind_named(plan.kind).views}:chrome_trace")(view_of(problem, plan))
        trace["traceEvents"] += self._timeline["traceEvents"]
        write_text(self._arguments.trace, json.dumps(trace), "--trace")

    def _send(self, plan_id: str, measured: Document) -> None:
        """Give the service that planned what its plan measured. The step is fitted also where that fails."""
        try:
            with connect(self._arguments) as client:
                client.plan(plan_id).send_measurement(measured)
        except LoadmasterError as error:
            self._terminal.say(f"{plan_id}: what it measured did not get to the service: {error}")
        else:
            self._terminal.say(f"{plan_id}: its page shows what was measured, too")

    def _table(self) -> str:
        """Build the table of what ran: a row for each plan and each value of the knob, and plain PyTorch last."""
        fitted = self._fitted
        assert fitted is not None

        def row(name: str, tried: dict[str, Any], step_us: float, planned: Sequence[str] = ("", "", "")) -> list[str]:
            peak, time, error = planned
            kept = "yes" if tried["kept"] else "no"
            return [name, peak, show_bytes(tried["used_bytes"]), kept, time, show_cost(step_us, "us"), error]

        rows = []
        for number, t in enumerate(self._tries):
            name = f"{number + 1}{' *' if number == fitted['chosen'] else ''}"
            peak, us = show_bytes(t["planned_peak_bytes"]), show_cost(t["planned_us"], "us")
            rows.append(row(name, t, t["measured"]["step_us"], (peak, us, show_share(t["time_error"]))))
        for number, t in enumerate(self._knob_tries):
            name = f"activation_memory_budget {t['knob']:.3g}{' *' if number == fitted['chosen_knob'] else ''}"
            rows.append(row(name, t, t["measured"]["step_us"]))
        if fitted["plain"] is not None:
            rows.append(row("plain PyTorch *", fitted["plain"], fitted["plain"]["step_us"]))
        return table(rows, ["try", "peak, planned", "measured", "kept", "step, planned", "measured", "error"])
