"""A job on a thread of the test's process: an interpreter of its own takes a hundred times as long to start.

All but the process is what it is outside the tests. What needs a process (a crash, a job that does not listen) is left
to :class:`loadmaster.api.worker.process.LocalJob`.
"""

from __future__ import annotations

import threading
from multiprocessing import Pipe

from loadmaster.api.settings import Settings
from loadmaster.api.worker.child import ParentConnection, plan_job
from loadmaster.api.worker.process import Message
from loadmaster.models.documents import Document


class ThreadJob:
    """A :class:`loadmaster.api.worker.process.RunningJob`."""

    waiting = False

    def __init__(self, problem: bytes, options: Document, settings: Settings) -> None:
        self._connection, theirs = Pipe()
        self._parent = ParentConnection(theirs)
        self._thread = threading.Thread(target=plan_job, args=(self._parent, settings.planner, problem, dict(options)))
        self._thread.start()

    def listen(self, timeout_s: float) -> list[Message]:
        return [self._connection.recv()] if self._connection.poll(timeout_s) else []

    def cancel(self) -> None:
        self._parent.cancel()

    def kill(self) -> None:
        self.cancel()
        self._thread.join()
        self._connection.close()
