"""A process that reads large requests to plan, seen from the server: hand one over, wait for what it says, end it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import threading
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from loadmaster.api.server.reading.submissions import Asked, NamedBlob, Submission
from loadmaster.api.settings import Settings
from loadmaster.solvers.registry import python_path

__all__ = ["BrokenReaderError", "ReaderProcess"]

# The largest body takes ten seconds of a processor, on a busy machine a minute: what takes longer has come to a stop.
_LONGEST_S = 300.0


class BrokenReaderError(Exception):
    """The process gave no answer.

    Attributes:
        by_chance: whether another process may well give one.
    """

    def __init__(self, reason: str, *, by_chance: bool) -> None:
        super().__init__(reason)
        self.by_chance = by_chance


class ReaderProcess:
    """One process: it reads one request after the other."""

    def __init__(self, settings: Settings) -> None:
        ours, theirs = Pipe()
        self._connection: Connection[Any, Any] = ours
        self._too_slow = threading.Event()
        self._memory_bytes = settings.max_job_memory_bytes
        with theirs:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "loadmaster.api.server.reading.reader_child"),
                    *(str(theirs.fileno()), str(settings.max_job_memory_bytes)),
                ],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": python_path()},
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        # A process that dies before it has read this shows as the end of its answers.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            ours.send((settings.planner, settings.max_time_limit_s))

    @property
    def pid(self) -> int:
        return self._process.pid

    def read(self, asked: Asked) -> Submission | NamedBlob | Exception:
        """What a request says, or the blob that it names; or an InputError, or what else reading it raised.

        Raises:
            BrokenReaderError: the process gave no answer, and must be ended.
        """
        # Also where it has stopped in the middle of listening.
        timer = threading.Timer(_LONGEST_S, self._give_up)
        timer.daemon = True
        timer.start()
        try:
            # The bytes go as they are: pickled with the rest they would be copied, each time.
            self._connection.send(dataclasses.replace(asked, body=b"", blob=None))
            self._connection.send_bytes(asked.body)
            self._connection.send(asked.blob is not None)
            if asked.blob is not None:
                self._connection.send_bytes(asked.blob)
            answer = self._connection.recv()
        except (EOFError, OSError):
            raise BrokenReaderError(self._reason_of_death(), by_chance=not self._too_slow.is_set()) from None
        finally:
            timer.cancel()
        if isinstance(answer, MemoryError):
            reason = f"it takes more memory than there is ({self._memory_bytes} bytes: max_job_memory_bytes)"
            raise BrokenReaderError(reason, by_chance=False)
        assert isinstance(answer, Submission | NamedBlob | Exception)
        return answer

    def kill(self) -> None:
        """Let it end now; whoever waits for it to read something is told. May be called from any thread."""
        self._process.kill()

    def end(self) -> None:
        """End it. Nobody may wait for it any more."""
        self.kill()
        self._process.wait()
        self._connection.close()

    def _give_up(self) -> None:
        self._too_slow.set()
        self.kill()

    def _reason_of_death(self) -> str:
        if self._too_slow.is_set():
            return f"it took longer than {_LONGEST_S:g} seconds"
        code = self._process.wait()
        how = signal.Signals(-code).name if code < 0 else f"with status {code}"
        memory = " (the system may be out of memory)" if code == -signal.SIGKILL else ""
        return f"the process that read it ended {how}{memory}"
