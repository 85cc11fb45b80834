"""A planner that does odd things while it reads, as its problem says: dies, hangs, waits, takes all memory."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from fake_planner import FakePlanner

from loadmaster.api.planning import Request
from loadmaster.models.documents import Document


class OddReading(FakePlanner):
    """``reading`` of a problem says what happens, ``marker`` names a file with the ids of processes that read it."""

    def read_each(self, problem: Document, options: Sequence[Document]) -> list[Request]:
        reading = problem.get("reading")
        if reading is not None:
            marker = Path(problem["marker"])
            with marker.open("a") as notes:
                notes.write(f"{os.getpid()}\n")
            first = len(marker.read_text().splitlines()) == 1
            if reading == "dies" or (reading == "dies once" and first):
                os.kill(os.getpid(), signal.SIGKILL)
            if reading == "has a bug":
                raise ZeroDivisionError("inside")
            if reading == "takes all memory":
                raise MemoryError
            while reading == "waits" and not marker.with_suffix(".go").exists():
                time.sleep(0.02)
        return super().read_each(problem, options)
