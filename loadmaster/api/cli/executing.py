"""Commands that run something: a process of the executor does it, and asks this one for plans.

This floor imports nothing of the executor's. Lines of JSON come from its process, and a line answers each question.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from loadmaster.api.cli.interrupt import interruptible
from loadmaster.api.cli.planning import report_progress
from loadmaster.api.cli.server import connect
from loadmaster.api.cli.service import follow
from loadmaster.api.cli.terminal import Terminal
from loadmaster.errors import LimitReachedError
from loadmaster.models.kinds import Plan, Problem, read_plan, write_plan
from loadmaster.planner import PlanOptions

Message = dict[str, Any]


def converse(
    module: str,
    arguments: Sequence[str],
    receive: Callable[[Message], Message | None],
    task: Mapping[str, Any] | None = None,
) -> int:
    """Run a module of the executor and answer it until it ends; returns its exit status, 1 if it was killed.

    Args:
        receive: takes a message; returns the answer, if it wants one.
        task: told first.
    """
    command = [sys.executable, "-m", module, *arguments]
    # A terminal's interrupt reaches both processes; the other one ends, which ends the conversation.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None

        def send(message: Mapping[str, Any]) -> None:
            process.stdin.write(json.dumps(message) + "\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]

        try:
            if task is not None:
                send(task)
            for line in process.stdout:
                answer = receive(json.loads(line))
                if answer is not None:
                    send(answer)
        except BaseException:
            process.kill()
            raise
    return process.returncode if process.returncode >= 0 else 1


def plan_answer(
    problem: Problem, options: PlanOptions, arguments: argparse.Namespace, terminal: Terminal
) -> tuple[Plan | None, str | None, Message]:
    """A plan, made here or by ``--server``, its id there, and the answer to the process that asked for it.

    No plan within the time limit is an answer, too: an earlier one may do.
    """
    try:
        plan, plan_id = _planned(problem, options, arguments, terminal)
    except LimitReachedError as error:
        return None, None, {"limit": str(error)}
    return plan, plan_id, {"plan": write_plan(plan)}


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
