"""A job in a process of its own, seen from the worker: listen to it, cancel it, kill it, learn how it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Protocol

from loadmaster.api.settings import Settings
from loadmaster.api.worker.child import CANCEL
from loadmaster.models.documents import Document
from loadmaster.solvers.registry import python_path

__all__ = ["CRASH", "Launcher", "LocalJob", "Message", "RunningJob"]

Message = tuple[str, Any]
CRASH = "crash"
_STDERR_TAIL_BYTES = 2000
_END_WITHIN_S = 5.0
_MOST_AT_ONCE = 200


class RunningJob(Protocol):
    """A job that runs somewhere; :class:`LocalJob` is the one on this machine."""

    @property
    def waiting(self) -> bool:
        """True while the job has no place to run yet: until then its time does not count."""
        ...

    def listen(self, timeout_s: float) -> list[Message]:
        """Return what the job has said, waiting up to ``timeout_s`` for a first word: progress, incumbent (figures
        alone), log, best_plan (objective and packed document); then exactly one of plan, error, or crash (with the
        reason as text)."""
        ...

    def cancel(self) -> None:
        """Ask the job to come to an end with what it has."""
        ...

    def kill(self) -> None:
        """End the job now, with everything it has started. No more messages follow."""
        ...


class Launcher(Protocol):
    """Starts a job somewhere. ``problem`` is the JSON of the problem document."""

    def __call__(self, problem: bytes, options: Document, settings: Settings) -> RunningJob: ...


class LocalJob:
    """A :class:`RunningJob` in a fresh interpreter on this machine."""

    waiting = False

    def __init__(self, problem: bytes, options: Document, settings: Settings) -> None:
        ours, theirs = Pipe()
        self._connection: Connection[Any, Any] = ours
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed by kill)
        # What solvers leave behind when they are killed goes with the job.
        self._folder = tempfile.TemporaryDirectory(prefix="loadmaster-job-", ignore_cleanup_errors=True)
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "loadmaster.api.worker.child",
                    str(theirs.fileno()),
                    str(settings.max_job_memory_bytes),
                    self._folder.name,
                ],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": python_path(), "TMPDIR": self._folder.name},
                stdin=subprocess.DEVNULL,
                stdout=self._stderr,
                stderr=self._stderr,
                start_new_session=True,
            )
        # A process that dies before it has read everything shows as the end of its messages.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            ours.send((settings.planner, problem, dict(options)))

    @property
    def pid(self) -> int:
        return self._process.pid

    def listen(self, timeout_s: float) -> list[Message]:
        messages: list[Message] = []
        deadline = time.monotonic() + timeout_s
        try:
            while len(messages) < _MOST_AT_ONCE and self._connection.poll(
                0 if messages else max(0.0, deadline - time.monotonic())
            ):
                messages.append(self._connection.recv())
                if messages[-1][0] in ("plan", "error"):
                    self.kill()
                    return messages
        except (EOFError, OSError):
            messages.append((CRASH, self._reason_of_death()))
        return messages

    def cancel(self) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._connection.send(CANCEL)

    def kill(self) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(_END_WITHIN_S)
        self._connection.close()
        self._stderr.close()
        self._folder.cleanup()

    def _reason_of_death(self) -> str:
        """Say why the process ended without an answer."""
        try:
            code = self._process.wait(_END_WITHIN_S)
        except subprocess.TimeoutExpired:
            code = None
        self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, self._stderr.tell() - _STDERR_TAIL_BYTES))
        written = self._stderr.read().decode(errors="replace").strip()
        self.kill()
        if code is None:
            how = "the planning process closed its connection and hung"
        elif code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
            memory = " (the system may be out of memory)" if name == "SIGKILL" else ""
            how = f"the planning process was killed by {name}{memory}"
        else:
            how = f"the planning process ended with status {code}"
        return f"{how}: {written}" if written else how
