"""A helper process that compiles one job, seen from the process that starts it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

FAREWELL_S = 2.0  # for compilers to take away what they have half written
_LOOK_EVERY_S = 0.01


class Helper:
    """A process that gets ready, and compiles one job, with so many ``threads`` for its kernels."""

    def __init__(self, threads: int) -> None:
        # It finds what this process finds: an empty entry is where it runs.
        paths = dict.fromkeys(path or os.getcwd() for path in sys.path)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        environment["TORCHINDUCTOR_COMPILE_THREADS"] = str(threads)
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end
        # A group of its own, so that what it starts stops and ends with it. In this session: where this process dies,
        # the system ends what stands still.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "loadmaster.executor.memory.fit.ahead.compile_one"],
            stdin=subprocess.PIPE,
            stdout=self._said,
            stderr=self._said,
            env=environment,
            process_group=0,
        )
        self.began: float | None = None
        """Time at which it got its job, by ``time.perf_counter``; None before."""

    def begin(self, path: Path) -> None:
        """Hand over the path of the job, which the process then compiles."""
        self.began = time.perf_counter()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{path}\n".encode())
            self._process.stdin.flush()

    def has_ended(self) -> bool:
        """Return whether the process has ended."""
        if self._process.returncode is None and self._process.poll() is not None:
            self._signal(signal.SIGTERM)  # what it has left; from now on the number may become another process's
        return self._process.returncode is not None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process and to what it has started."""
        if not self.has_ended():
            self._signal(number)

    def end(self) -> str | None:
        """End the process; returns why it compiled nothing, if it ended by itself without success. Compilers are asked
        to end: killed, they would leave in the cache what they have half written."""
        failed = self.has_ended() and self.began is not None and self._process.returncode != 0
        if not self.has_ended():
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)  # what stands still hears nothing else
            until = time.perf_counter() + FAREWELL_S
            while self._is_there():
                if time.perf_counter() > until:
                    self._signal(signal.SIGKILL)
                    break
                time.sleep(_LOOK_EVERY_S)
        self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines() if failed else []
        self._said.close()
        return (lines or ["it said nothing"])[-1] if failed else None

    def _is_there(self) -> bool:
        """Return whether any process of its group is left."""
        self._process.poll()
        return self._signal(0)

    def _signal(self, number: int) -> bool:
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True
