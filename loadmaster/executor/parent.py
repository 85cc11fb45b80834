"""The process that started this one and plans for it: this floor never plans, and that one never imports torch.

Lines of JSON go out on standard output, and a line on standard input answers each question. ``{"problem": document}``
asks for a plan; the answer is ``{"plan": document}``, or ``{"limit": text}`` where planning took too long.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from typing import Any, TextIO

from loadmaster.errors import InputError, LimitReachedError
from loadmaster.models.kinds import Plan, Problem, read_plan, write_problem


class Parent:
    """The process that plans, at the other end of two pipes."""

    def __init__(self, questions: TextIO, answers: TextIO) -> None:
        self._questions, self._answers = questions, answers
        self._writing = threading.Lock()

    @classmethod
    def of_this_process(cls) -> Parent:
        """Connect to the parent by standard input and output. What else is printed goes to standard error."""
        # The first line that a user's own code prints must not be taken for an answer.
        questions = os.fdopen(os.dup(sys.stdout.fileno()), "w")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        return cls(questions, sys.stdin)

    def task(self) -> dict[str, Any]:
        """Read the task, where that comes as the first line.

        Raises:
            InputError: the other process is gone.
        """
        return self._next()

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send one line, also while another thread asks."""
        line = json.dumps(message) + "\n"
        with self._writing:
            self._questions.write(line)
            self._questions.flush()

    def ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send one line, and wait for the one that answers it.

        Raises:
            InputError: the other process is gone.
        """
        self.tell(message)
        return self._next()

    def plan(self, problem: Problem) -> Plan:
        """Ask for a plan, and wait for it.

        Raises:
            InputError: the answer is not a plan, or the other process is gone.
            LimitReachedError: planning took too long.
        """
        answer = self.ask({"problem": write_problem(problem)})
        if "limit" in answer:
            raise LimitReachedError(answer["limit"])
        return read_plan(answer["plan"])

    def _next(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line:
            raise InputError("plan", "nothing", "did not come: the planning process is gone", "Run the command again.")
        told: dict[str, Any] = json.loads(line)
        return told
