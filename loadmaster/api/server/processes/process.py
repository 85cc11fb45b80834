"""A process that works for the server, seen from there: hand work over, wait for what comes of it, end it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from multiprocessing import Pipe, reduction
from multiprocessing.connection import Connection
from typing import IO, Any

from loadmaster.solvers.registry import python_path

__all__ = ["BrokenWorkError", "Work", "WorkProcess"]


@dataclass(frozen=True)
class Work:
    """A function to call in another process; what it returns, or raises, comes back.

    Attributes:
        function: ``module:name``; it is given the file, if there is one, the arguments, and then the buffers.
        longest_s: work that takes longer is ended.
        arguments: small, for they are pickled.
        buffers: bytes that go as they are: pickled with the rest they would be copied, each time.
        file: to write to, open here: the other process writes by a descriptor of its own, ``largest_file_bytes`` at
            most.
    """

    function: str
    longest_s: float
    arguments: tuple[Any, ...] = ()
    buffers: tuple[bytes, ...] = ()
    file: IO[bytes] | None = field(default=None, repr=False)
    largest_file_bytes: int = 0


class BrokenWorkError(Exception):
    """A process that gave no answer; ``by_chance``: another process may well give one."""

    def __init__(self, reason: str, *, by_chance: bool) -> None:
        super().__init__(reason)
        self.by_chance = by_chance


class WorkProcess:
    """One process: it does one piece of work after the other. ``memory_bytes``: of address space that it may take, 0 is
    no cap; ``cap``: the name of the setting that says so."""

    def __init__(self, memory_bytes: int, cap: str) -> None:
        ours, theirs = Pipe()
        self._connection: Connection[Any, Any] = ours
        self._too_slow = threading.Event()
        self._memory = f"{memory_bytes} bytes: {cap}"
        with theirs:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "loadmaster.api.server.processes.child"),
                    *(str(theirs.fileno()), str(memory_bytes)),
                ],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": python_path()},
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def do(self, work: Work) -> Any:
        """Return what the work returns, or the exception that it raised. Raises BrokenWorkError if the process gave no
        answer, and must be ended."""
        # Also where it has stopped in the middle of listening.
        timer = threading.Timer(work.longest_s, self._give_up)
        timer.daemon = True
        timer.start()
        try:
            largest_bytes = None if work.file is None else work.largest_file_bytes
            self._connection.send((work.function, work.arguments, len(work.buffers), largest_bytes))
            if work.file is not None:
                reduction.send_handle(self._connection, work.file.fileno(), self.pid)
            for buffer in work.buffers:
                self._connection.send_bytes(buffer)
            answer = self._connection.recv()
        except (EOFError, OSError):
            reason = self._reason_of_death(work)
            raise BrokenWorkError(reason, by_chance=not self._too_slow.is_set()) from None
        finally:
            timer.cancel()
        if isinstance(answer, MemoryError):
            raise BrokenWorkError(f"it takes more memory than it may ({self._memory})", by_chance=False)
        return answer

    def kill(self) -> None:
        """Let it end now; whoever waits for its answer is told. May be called from any thread."""
        self._process.kill()

    def end(self) -> None:
        """End the process. Nobody may wait for it any more."""
        self.kill()
        self._process.wait()
        self._connection.close()

    def _give_up(self) -> None:
        self._too_slow.set()
        self.kill()

    def _reason_of_death(self, work: Work) -> str:
        if self._too_slow.is_set():
            return f"it took longer than {work.longest_s:g} seconds"
        code = self._process.wait()
        how = signal.Signals(-code).name if code < 0 else f"with status {code}"
        memory = " (the system may be out of memory)" if code == -signal.SIGKILL else ""
        return f"its process ended {how}{memory}"
