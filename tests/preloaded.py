"""``python -m MODULE`` as a fork of a process that has imported it: torch takes eight seconds to import, now once.

For tests of a command that starts such a process in each of them. One of them shows that it starts from nothing, too.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, Self

PIPE = -1


class Popen:
    """What ``subprocess.Popen([sys.executable, "-m", MODULE, ...], stdin=PIPE, stdout=PIPE, text=True)`` is."""

    def __init__(self, command: Sequence[str], *, stdin: int, stdout: int, text: bool) -> None:
        python, option, module, *arguments = command
        assert (python, option, stdin, stdout, text) == (sys.executable, "-m", PIPE, PIPE, True)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch._inductor.compile_fx", module, arguments[0].partition(":")[0]])
        asked, answers = os.pipe()
        told, questions = os.pipe()
        # Connections, because they are what can be handed to a process that is no child of this one.
        ends = [Connection(asked, writable=False), Connection(questions, readable=False)]
        ends.append(Connection(os.dup(2), readable=False))
        self._process = context.Process(target=_run, args=(module, arguments, os.getcwd(), dict(os.environ), ends))
        self._process.start()
        for end in ends:
            end.close()
        self.stdin, self.stdout = open(answers, "w"), open(told)  # noqa: SIM115 - closed on leaving

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.stdout.close()
        self.stdin.close()
        self._process.join()


def _run(module: str, arguments: list[str], folder: str, environment: dict[str, str], ends: list[Connection]) -> None:
    os.chdir(folder)
    # The server that is forked keeps the environment of the test that started it.
    os.environ.clear()
    os.environ.update(environment)
    for number, end in enumerate(ends):
        os.dup2(end.fileno(), number)
        end.close()
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
    sys.path.insert(0, folder)
    sys.argv = [module, *arguments]
    sys.exit(importlib.import_module(module).main())
