"""Keeps a server's own workers alive: starts them, replaces those that die, stops them at the end.

It also takes back the jobs of any worker that fell silent, even where the server has none of its own, and purges
what was kept for long enough.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time

from sqlalchemy.exc import SQLAlchemyError

from loadmaster.api.settings import Settings
from loadmaster.api.store.database import log_error
from loadmaster.api.store.queue import Queue
from loadmaster.api.store.retention import Retention
from loadmaster.api.worker.worker import new_worker_id
from loadmaster.solvers.registry import python_path

__all__ = ["Supervisor"]

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.2
_LONGEST_PAUSE_S = 30.0
_HEALTHY_AFTER_S = 10.0
_RETAIN_EVERY_S = 60.0
_STOP_WITHIN_S = 10.0


class Supervisor:
    """Runs ``settings.workers`` worker processes between :meth:`start` and :meth:`stop`."""

    def __init__(self, settings: Settings, queue: Queue, retention: Retention) -> None:
        self._settings = settings
        self._queue, self._retention = queue, retention
        self._stopping = threading.Event()
        self._slots = [_Slot() for _ in range(settings.workers)]
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)

    def start(self) -> None:
        """Start the workers, and the thread that looks after them."""
        for slot in self._slots:
            slot.start(self._settings)
        self._thread.start()

    def begin_to_stop(self) -> None:
        """Let the workers come to an end; :meth:`stop` waits for it. Safe in a signal handler."""
        self._stopping.set()
        for slot in self._slots:
            slot.terminate()

    def stop(self) -> None:
        """Stop the workers in good order; those that do not stop are killed."""
        self._stopping.set()
        self._thread.join()
        for slot in self._slots:
            slot.terminate()
        deadline = time.monotonic() + _STOP_WITHIN_S
        for slot in self._slots:
            slot.wait(deadline)

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers that are alive."""
        return [slot.process.pid for slot in self._slots if slot.process is not None and slot.alive]

    def _run(self) -> None:
        reclaim_at = retain_at = 0.0
        while not self._stopping.wait(_LOOK_EVERY_S):
            for slot in self._slots:
                if not slot.alive:
                    self._replace(slot)
            if time.monotonic() >= reclaim_at:
                # Workers do so between jobs alone.
                reclaim_at = time.monotonic() + self._settings.lease_s / 3
                self._reclaim()
            if time.monotonic() >= retain_at:
                retain_at = time.monotonic() + _RETAIN_EVERY_S
                self._retain()

    def _reclaim(self) -> None:
        try:
            self._queue.reclaim()
        except SQLAlchemyError as error:
            log_error(logger, "jobs of silent workers wait", error)

    def _retain(self) -> None:
        try:
            self._retention.apply()
        except SQLAlchemyError as error:
            log_error(logger, "what is old stays", error)

    def _replace(self, slot: _Slot) -> None:
        if slot.worker_id is not None:
            logger.warning("worker %s died", slot.worker_id)
            try:
                self._queue.abandon(slot.worker_id)
                self._queue.gone(slot.worker_id)
            except SQLAlchemyError as error:
                log_error(logger, "the dead worker's lease will expire", error)
            slot.plan_restart()
        if time.monotonic() >= slot.start_at and not self._stopping.is_set():
            slot.start(self._settings)


class _Slot:
    """The place of one worker. One that dies at once again and again is restarted ever more slowly."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.worker_id: str | None = None
        self.start_at = 0.0
        self._started_at = 0.0
        self._pause_s = 0.0

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self, settings: Settings) -> None:
        self.worker_id = new_worker_id()
        self._started_at = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "loadmaster.api.worker", self.worker_id, str(os.getpid())],
            env={**os.environ, **settings.to_environment(), "PYTHONPATH": python_path()},
            stdin=subprocess.DEVNULL,
            # A Ctrl-C in the terminal is for the server: it stops its workers in good order.
            start_new_session=True,
        )

    def plan_restart(self) -> None:
        self.worker_id = None
        lived_s = time.monotonic() - self._started_at
        self._pause_s = 0.0 if lived_s > _HEALTHY_AFTER_S else min(2 * self._pause_s + 0.5, _LONGEST_PAUSE_S)
        self.start_at = time.monotonic() + self._pause_s

    def terminate(self) -> None:
        if self.process is not None:
            self.process.terminate()

    def wait(self, deadline: float) -> None:
        if self.process is None:
            return
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
