"""``tune``: configurations of an index by measurement: planned, run on traces, and planned again until the plan stays.

Traces run in a process of the executor's, which asks for plans. Planning happens here, or on a server.
"""

from __future__ import annotations

import argparse
import os

from loadmaster.api.cli import new_index
from loadmaster.api.cli.executing import Message, Plans, converse
from loadmaster.api.cli.files import expect_apart, read_document, write_json
from loadmaster.api.cli.planning import INTERRUPTED, add_limits, add_options, finish, options_of
from loadmaster.api.cli.server import add_server
from loadmaster.api.cli.terminal import Terminal, interruptible
from loadmaster.api.report.index.view import view
from loadmaster.api.report.index.words import details
from loadmaster.errors import InputError, LoadmasterError
from loadmaster.models.canonical import plain
from loadmaster.models.documents import parse
from loadmaster.models.files import expect_writable
from loadmaster.models.index.documents import read_problem, write_problem
from loadmaster.models.index.features import Features
from loadmaster.models.index.measured import SECONDS
from loadmaster.models.index.problem import IndexProblem
from loadmaster.models.index.serving import words
from loadmaster.planner import PlanOptions

_STOPPED = {
    "stable": "nothing else may be quicker than what was chosen",
    "time": "the time was up: what is left may still be quicker; --seconds gives more",
    "cancel": "cancelled",
}


def tune_arguments(tune: argparse.ArgumentParser) -> None:
    """Add the arguments of ``tune`` to its parser."""
    tune.description = _tune.__doc__
    tune.add_argument(
        "given", nargs="?", metavar="PROBLEM.json", help="what new index made (the problem of the traces; - is stdin)"
    )
    tune.add_argument("-o", "--output", metavar="PLAN.json", help="write the plan here, and its problem next to it")
    tune.add_argument("--problem", metavar="MEASURED.json", help="write the measured problem here (PLAN.problem.json)")
    tune.add_argument(
        "--seconds", type=float, default=SECONDS, metavar="S", help="for plans and runs together (%(default)g)"
    )
    tune.add_argument(
        "--most-operations",
        type=int,
        metavar="N",
        help="of a trace that run at most, from its beginning (all)",
    )
    add_limits(tune, only="index")
    before = {action.dest for action in tune._actions}
    new_index.add_arguments(tune)
    of_new = {a.dest: a.default for a in tune._actions if a.dest not in {*before, "trace", "seed"}}
    add_options(tune, seed=False)
    add_server(tune)
    tune.add_argument("--json", action="store_true", help="print the plan without its schedule as JSON")
    tune.set_defaults(run=_tune, of_new=of_new)


def _tune(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Plan an index, run its traces with what was chosen and what may be quicker, and plan again until that stays."""
    if arguments.problem is None and arguments.output not in (None, "-"):
        arguments.problem = os.path.splitext(arguments.output)[0] + ".problem.json"
    written = {"-o": arguments.output, "--problem": arguments.problem}
    for flag, path in written.items():
        expect_writable(path, flag)
    expect_apart(written, {"the problem": arguments.given})
    if not arguments.seconds > 0:
        raise InputError("--seconds", arguments.seconds, "is not above 0", "Give seconds.")
    if arguments.most_operations is not None and arguments.most_operations < 1:
        raise InputError("--most-operations", arguments.most_operations, "is less than 1", "Give 1 or more.")
    session = _Session(arguments, terminal)
    task = {
        "traces": arguments.trace or plain(new_index.distributions(arguments)),
        "problem": None if arguments.given is None else write_problem(session.take(_read(arguments))),
        "seconds": arguments.seconds,
        "most_operations": arguments.most_operations,
    }
    with interruptible(terminal):
        status = converse("loadmaster.executor.index.command:main", task, session.receive)
    if status == INTERRUPTED:
        terminal.say("interrupted before there was a plan")
    return status or session.finish()


def _read(arguments: argparse.Namespace) -> IndexProblem:
    """The problem that was given. Raises InputError if it is of another kind, or a flag says how to make one."""
    for name, default in arguments.of_new.items():
        if (value := getattr(arguments, name)) != default:
            flag = f"--{name.replace('_', '-')}"
            raise InputError(flag, value, "says how to make a problem, and one is given", "Leave out one of both.")
    return read_problem(read_document(arguments.given, "PROBLEM.json"))


class _Session:
    """The conversation with the process that runs traces: what it says, and what it is answered."""

    def __init__(self, arguments: argparse.Namespace, terminal: Terminal) -> None:
        new_index.expect_arguments(arguments)
        self._arguments, self._terminal = arguments, terminal
        self._problem: IndexProblem | None = None
        self._options: PlanOptions | None = None
        self._plans = Plans(arguments, terminal)
        self._runs = 0
        self._tuned: Message | None = None

    def take(self, problem: IndexProblem) -> IndexProblem:
        """Take the first problem: its limit is that of all plans, though shares of what it needs change with costs."""
        self._problem, self._options = problem, options_of(self._arguments, problem)
        return problem

    def receive(self, message: Message) -> Message | None:
        """Take one message; returns the answer, if it wants one."""
        if "shards" in message:
            shards = [(name, parse(Features, of)) for name, of in message["shards"]]
            return {"problem": write_problem(self.take(new_index.problem_with(self._arguments, shards)))}
        assert self._problem is not None and self._options is not None, "the first problem was taken"
        if "problem" in message:
            return self._plans.answer(read_problem(message["problem"]), self._options)
        if "ran" in message:
            self._runs += 1
            shard = self._problem.shards[message["ran"]["shard"]].name
            ran = words(self._problem.candidates[message["ran"]["candidate"]])
            self._terminal.progress(f"run {self._runs}: {shard}, {ran}")
        else:
            self._tuned = message["tuned"]
        return None

    def finish(self) -> int:
        if self._tuned is None:
            raise LoadmasterError("the process that runs the traces ended without an answer")
        arguments, terminal, told = self._arguments, self._terminal, self._tuned
        problem, plan, _ = self._plans.made[told["problem_sha256"]]
        terminal.say(f"{told['ran']} runs after {told['rounds']} plans: {_STOPPED[told['stopped_by']]}")
        if arguments.problem is not None:
            write_json(arguments.problem, write_problem(problem), terminal, "--problem")
            if arguments.problem != "-":
                terminal.say(f"problem: {arguments.problem}")
        status = finish(plan, arguments, terminal)
        if plan.status != "infeasible" and not arguments.json and arguments.output != "-":
            terminal.data(details(view(problem, plan)))
        return INTERRUPTED if told["stopped_by"] == "cancel" else status
