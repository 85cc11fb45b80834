"""Commands that run something: a process of the executor does it, and asks this one for plans.

This floor imports nothing of the executor's, least of all torch. Lines of JSON come from the other process, and a line
answers each question (:mod:`loadmaster.executor.command`).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from loadmaster.api.cli.planning import report_progress
from loadmaster.api.cli.server import connect
from loadmaster.api.cli.service import follow
from loadmaster.api.cli.terminal import Terminal, interruptible
from loadmaster.errors import LimitReachedError, MissingExtraError
from loadmaster.models.kinds import Plan, Problem, read_plan, write_plan
from loadmaster.planner import PlanOptions

Message = dict[str, Any]


def command_of(function: str, arguments: Sequence[str] = ()) -> list[str]:
    """The command that runs a function of the executor, named ``module:name``, in a process of its own."""
    return [sys.executable, "-m", "loadmaster.executor.command", function, *arguments]


def expect_torch() -> None:
    """Refuse to start what needs torch where there is none. Raises MissingExtraError if torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError("torch", "torch")


def converse(function: str, task: Mapping[str, Any], receive: Callable[[Message], Message | None]) -> int:
    """Run a function of the executor and answer it until it ends. It is told the ``task`` first; ``receive`` takes a
    message and returns the answer, if it wants one. Returns its exit status, 1 if it was killed."""
    # A terminal's interrupt reaches both processes; the other one ends, which ends the conversation.
    with subprocess.Popen(command_of(function), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None

        def send(message: Mapping[str, Any]) -> None:
            process.stdin.write(json.dumps(message) + "\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]

        try:
            send(task)
            for line in process.stdout:
                answer = receive(json.loads(line))
                if answer is not None:
                    send(answer)
        except BaseException:
            process.kill()
            raise
    return process.returncode if process.returncode >= 0 else 1


class Plans:
    """Plans that the other process asks for, made here or by ``--server``. ``made``: by the problem's ``sha256``:
    problem, plan, and the plan's id on the server."""

    def __init__(self, arguments: argparse.Namespace, terminal: Terminal) -> None:
        self._arguments, self._terminal = arguments, terminal
        self.made: dict[str, tuple[Any, Any, str | None]] = {}

    def answer(self, problem: Problem, options: PlanOptions) -> Message:
        """Plan a problem. No plan within the time limit is an answer, too: an earlier one may do."""
        try:
            plan, plan_id = _planned(problem, options, self._arguments, self._terminal)
        except LimitReachedError as error:
            return {"limit": str(error)}
        self.made[problem.sha256] = problem, plan, plan_id
        return {"plan": write_plan(plan)}


def _planned(
    problem: Problem, options: PlanOptions, arguments: argparse.Namespace, terminal: Terminal
) -> tuple[Plan, str | None]:
    if arguments.server is not None:
        with connect(arguments) as client:
            handle = client.submit(problem, options)
            follow(handle, terminal, problem.unit)
            return read_plan(handle.document()), handle.id
    from loadmaster.planner import plan

    with interruptible(terminal) as cancelled:
        made = plan(
            problem,
            options,
            on_progress=lambda progress: report_progress(terminal, progress, problem.unit),
            cancelled=cancelled,
        )
    return made, None
