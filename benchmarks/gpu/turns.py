"""Turns of rows' processes on one GPU: they compile together and run one at a time, others still while one measures."""

from __future__ import annotations

import queue
import time
from collections import deque
from typing import Any

from benchmarks.gpu.process import Process

# Kernels that were queued before a process was stopped drain in this time.
SETTLE_S = 0.3


class Turns:
    """Queue of processes: those that run, those that ask to be alone, and the one that is.

    Attributes:
        heard: what processes say, for :meth:`next`.
        running: those that have not ended.
        asking: those that wait to be alone, the first to ask in front.
        alone: the one that is.
        is_still: whether the others stand still.
    """

    def __init__(self) -> None:
        self.heard: queue.Queue[tuple[Process, dict[str, Any] | None]] = queue.Queue()
        self.running: list[Process] = []
        self.asking: deque[Process] = deque()
        self.alone: Process | None = None
        self.is_still = False

    def next(self) -> tuple[Process, dict[str, Any]] | None:
        """Let the next process be alone, and wait a moment for what one has found out, or that it has ended."""
        self._serve()
        try:
            process, message = self.heard.get(timeout=0.5)
        except queue.Empty:
            return None
        if process not in self.running:
            return None
        facts = dict(message or {})
        said = facts.pop("say", "nothing")
        if said == "alone":
            self.asking.append(process)
        elif said == "still":
            self._still(process)
        elif said == "done":
            self._free()
        elif said == "apart":
            process.is_apart = True
            process.thaw()
        elif said == "back":
            process.is_apart = False
            if self.is_still:
                process.freeze()
        elif said == "clock":
            process.clock[facts["name"]] = process.running_s
        elif said == "row":
            return process, facts
        else:
            return process, {"error": f"ended: {process.last_words()}"}
        return None

    def forget(self, process: Process) -> None:
        """Remove a process from the turns."""
        self.running.remove(process)
        self.asking = deque(p for p in self.asking if p is not process)
        if process is self.alone:
            self._free()

    def _free(self) -> None:
        self.alone, self.is_still = None, False
        for process in self.running:
            process.thaw()

    def _serve(self) -> None:
        if self.alone is None and self.asking:
            self.alone = self.asking.popleft()
            self.alone.tell("go")

    def _still(self, process: Process) -> None:
        self.is_still = True
        others = [p for p in self.running if p is not process]
        for other in others:
            other.freeze()
        if others:
            time.sleep(SETTLE_S)
        process.tell("go")
