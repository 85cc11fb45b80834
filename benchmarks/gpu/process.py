"""Process of a row as the scheduler sees it: start, stop, let stand still, talk."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.budgets import Row
from benchmarks.gpu.talk import MARK

ROOT = Path(__file__).resolve().parents[2]


class Process:
    """Worker process that measures one row.

    Args:
        row: what it measures.
        command: the module that measures it, and its arguments.
        log: where its standard error goes.
        heard: where (process, message) pairs arrive; the message is None when it has ended.
        environment: in addition to this process's own.

    Attributes:
        clock: what it said it had reached, and how long it had run by then, standing still left out.
    """

    def __init__(
        self, row: Row, command: Sequence[str], log: Path, heard: queue.Queue[Any], environment: Mapping[str, str]
    ) -> None:
        self.row = row
        self.clock: dict[str, float] = {}
        self.log = log
        self.started = time.monotonic()
        self.frozen_s = 0.0
        self._frozen_at: float | None = None
        self.is_apart = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            text=True,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        threading.Thread(target=self._listen, args=(heard,), daemon=True).start()

    def _listen(self, heard: queue.Queue[Any]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                heard.put((self, json.loads(line.removeprefix(MARK))))
        heard.put((self, None))

    def tell(self, word: str) -> None:
        """Say a word to the process; one that has ended hears nothing."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._process.stdin.write(word + "\n")
            self._process.stdin.flush()

    def freeze(self) -> None:
        """Stop the process and its children for a while (SIGSTOP), unless it is off the GPU."""
        if self._frozen_at is None and not self.is_apart:
            self._frozen_at = time.monotonic()
            self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen process go on (SIGCONT)."""
        if self._frozen_at is not None:
            self.frozen_s += time.monotonic() - self._frozen_at
            self._frozen_at = None
            self._signal(signal.SIGCONT)

    def end(self, *, patience_s: float = 0.0) -> None:
        """Stop the process; first let it write down what went wrong."""
        self.thaw()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_s)
        self.stop()

    def stop(self) -> None:
        """Kill the process and its children."""
        self.thaw()
        self._signal(signal.SIGKILL)
        self._process.wait()

    @property
    def running_s(self) -> float:
        """Seconds that the process has run, without those it was frozen."""
        frozen = 0.0 if self._frozen_at is None else time.monotonic() - self._frozen_at
        return time.monotonic() - self.started - self.frozen_s - frozen

    def last_words(self) -> str:
        """Last line of the process's log."""
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1][:300] if lines else "it said nothing"

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
