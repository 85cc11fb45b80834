"""``python -m loadmaster.executor.command MODULE:FUNCTION ARGUMENT...``: a function of this floor, for a command line.

The command line's floor never imports torch, and this floor never plans: so a command starts this module in a process
of its own, and the function may ask the command (:class:`Parent`) for plans. The prints and crashes of a user's own
code stay apart from the command's output.

Both exchange lines of JSON by standard output and input; the first line of input is the task. ``{"problem": document}``
asks for a plan; the answer is ``{"plan": document}``, or ``{"limit": text}`` where planning took too long.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from loadmaster.errors import CancelledError, InputError, LimitReachedError, LoadmasterError
from loadmaster.models.kind import resolve
from loadmaster.models.kinds import Problem, read_plan, write_problem


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

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send one line, also while another thread asks."""
        line = json.dumps(message) + "\n"
        with self._writing:
            self._questions.write(line)
            self._questions.flush()

    def ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send one line, and wait for the one that answers it; raises InputError if the other process is gone."""
        self.tell(message)
        return self.hear()

    def hear(self) -> dict[str, Any]:
        """Wait for one line: an answer, or at first the task. Raises InputError if the other process is gone."""
        line = self._answers.readline()
        if not line:
            raise InputError("plan", "nothing", "did not come: the planning process is gone", "Run the command again.")
        heard: dict[str, Any] = json.loads(line)
        return heard

    def plan(self, problem: Problem) -> Any:
        """Ask for a plan of the problem's kind and wait for it. Raises InputError if the answer is no plan or the other
        process is gone, LimitReachedError if planning took too long."""
        answer = self.ask({"problem": write_problem(problem)})
        if "limit" in answer:
            raise LimitReachedError(answer["limit"])
        return read_plan(answer["plan"])


def main() -> int:
    """Run the function that the command line names, with the other arguments; returns its exit status."""
    reference, *arguments = sys.argv[1:]
    try:
        # Imported here, because PyTorch takes its time, and whoever interrupts that needs no traceback.
        run: Callable[[Sequence[str]], int] = resolve(reference)
        return run(arguments)
    except LoadmasterError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_status
    except KeyboardInterrupt:
        return CancelledError.exit_status


if __name__ == "__main__":
    sys.exit(main())
