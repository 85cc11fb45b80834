"""A worker: takes one job at a time from the queue, plans it in a process of its own, reports, and goes on."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from sqlalchemy.exc import InterfaceError, OperationalError, SQLAlchemyError

from loadmaster.api import telemetry
from loadmaster.api.packed import UnreadableDocumentError
from loadmaster.api.settings import Settings
from loadmaster.api.store.database import Database, log_error
from loadmaster.api.store.queue import Beat, Queue
from loadmaster.api.store.records import Job, State
from loadmaster.api.worker.process import CRASH, Launcher, LocalJob, Message, RunningJob
from loadmaster.models.documents import Document

__all__ = ["Worker", "new_worker_id"]

logger = logging.getLogger(__name__)

ArgumentsP = ParamSpec("ArgumentsP")
ResultT = TypeVar("ResultT")

# A heartbeat, due after a third of the lease, is tried more than once before the lease runs out.
_WAIT_SHARE = 0.2
_DATABASE_PAUSE_S = 2.0
_RETRY_PAUSE_S = 0.5
_STATES = {"optimal": State.SUCCEEDED, "feasible": State.SUCCEEDED, "infeasible": State.INFEASIBLE}
_EVENTS = ("progress", "incumbent", "log")
_BEST_PLAN = "best_plan"


def new_worker_id() -> str:
    """Make an id that says where the worker runs."""
    return f"{socket.gethostname()[:32]}-{os.getpid()}-{secrets.token_hex(4)}"


class Worker:
    """Leases jobs and plans them until :meth:`stop`. ``launch`` starts the job's process; the seam for running jobs
    elsewhere."""

    def __init__(self, settings: Settings, *, worker_id: str | None = None, launch: Launcher = LocalJob) -> None:
        self.id = worker_id or new_worker_id()
        self._settings = settings
        self._launch = launch
        # A plain flag: an Event's lock could be held by the very code that the signal interrupts.
        self._stopping = False
        self._database = Database(settings.database_url, wait_s=_WAIT_SHARE * settings.lease_s)
        self._queue = Queue(self._database, lease_s=settings.lease_s, max_attempts=settings.max_attempts)

    def stop(self) -> None:
        """Ask the worker to end: a running job goes back to the queue unharmed. Safe in a signal handler."""
        self._stopping = True

    def run(self) -> None:
        """Work until :meth:`stop`. A database that does not answer is waited for."""
        logger.info("worker %s is ready", self.id)
        seen_at = 0.0
        try:
            while not self._stopping:
                try:
                    if time.monotonic() - seen_at > self._settings.lease_s / 3:
                        self._queue.seen(self.id)
                        self._queue.reclaim()
                        seen_at = time.monotonic()
                    if not self.work_once():
                        time.sleep(self._settings.poll_s)
                except SQLAlchemyError as error:
                    log_error(logger, "trying again", error)
                    time.sleep(_DATABASE_PAUSE_S)
        finally:
            self.close()

    def close(self) -> None:
        """Leave the service: the worker is gone, and its database closed."""
        self._queue.gone(self.id)
        self._database.close()

    def work_once(self) -> bool:
        """Take a job and bring it to an end; False if none waits."""
        job = self._queue.claim(self.id)
        if job is None:
            return False
        if not job.state.final:
            self.bring_to_end(job)
        return True

    def bring_to_end(self, job: Job) -> None:
        """Plan a job that was claimed, to its end or until :meth:`stop`."""
        logger.info("job %s: attempt %d", job.id, job.attempts)
        began = time.monotonic()
        try:
            problem = self._queue.problem(job)
        except UnreadableDocumentError as error:
            logger.error("job %s fails: %s", job.id, error)
            detail = f"The problem cannot be read any more: {error}. Submit it again."
            self._finish(job, State.FAILED, began, error={"type": "SolverError", "detail": detail})
            return
        running = self._launch(problem, job.options, self._settings)
        try:
            self._follow(job, running, began)
        finally:
            running.kill()

    def _follow(self, job: Job, running: RunningJob, began: float) -> None:
        """Pass on what the job says, keep its lease, and hold it to cancels and limits."""
        allowed_s = job.time_limit_s + self._settings.overrun_s
        beat_at = time.monotonic()
        kill_at = beat_at + allowed_s
        cancelling = has_plan = is_over = False
        while True:
            messages = running.listen(self._settings.poll_s)
            has_plan = has_plan or any(kind == "incumbent" for kind, _ in messages)
            if not self._record(job, messages):
                return
            if messages and messages[-1][0] not in (*_EVENTS, _BEST_PLAN):
                if is_over and not cancelling:
                    self._run_out(job, messages[-1], began)
                else:
                    self._conclude(job, messages[-1], cancelling, began)
                return
            now = time.monotonic()
            if running.waiting and not cancelling:
                kill_at = now + allowed_s
            if self._stopping:
                self._ask(self._queue.release, job.id, self.id)
                return
            if now >= kill_at and cancelling:
                self._finish(job, State.CANCELLED, began)
                return
            if now >= kill_at and is_over:
                self._run_out(job, None, began)
                return
            if now >= kill_at:
                # What it has, it may still hand over.
                is_over = True
                running.cancel()
                kill_at = now + self._settings.cancel_grace_s
            if now - beat_at > self._settings.lease_s / 3:
                beat, beat_at = self._ask(self._queue.beat, job.id, self.id), now
                self._ask(self._queue.seen, self.id)
            else:
                beat = self._ask(self._queue.look, job.id, self.id)
            if beat is Beat.LOST:
                logger.warning("job %s: the lease was lost", job.id)
                return
            if beat is Beat.CANCEL and not cancelling:
                cancelling = True
                running.cancel()
                # What has found nothing has nothing to hand over.
                kill_at = now + (self._settings.cancel_grace_s if has_plan else 0.0)

    def _record(self, job: Job, messages: Sequence[Message]) -> bool:
        """Write down what the job says before its end; False when the lease is lost."""
        events = [
            (kind, {"line": content} if kind == "log" else content) for kind, content in messages if kind in _EVENTS
        ]
        if events and not self._ask(self._queue.record, job.id, self.id, events):
            return False
        plans = [content for kind, content in messages if kind == _BEST_PLAN]
        return not plans or self._ask(self._queue.keep, job.id, self.id, *plans[-1])

    def _conclude(self, job: Job, last: Message, cancelling: bool, began: float) -> None:
        kind, content = last
        logger.info("job %s: ends with %s", job.id, kind)
        if kind == "plan":
            # What was stopped by a cancel keeps its plan; what was proved infeasible meanwhile is an answer.
            state = _STATES[content["status"]]
            if cancelling and state is State.SUCCEEDED:
                state = State.CANCELLED
            self._finish(job, state, began, plan=content)
        elif kind == "error":
            cancelled = cancelling or content["type"] == "CancelledError"
            state = State.CANCELLED if cancelled else State.FAILED
            self._finish(job, state, began, error=None if cancelled else content)
        elif kind == CRASH and cancelling:
            self._finish(job, State.CANCELLED, began)
        else:
            logger.warning("job %s: %s", job.id, content)
            self._ask(self._queue.give_up, job.id, self.id, content)
            _trace(job, State.FAILED)

    def _run_out(self, job: Job, last: Message | None, began: float) -> None:
        """End a job that did not stop by itself: with the plan that it hands over now, or the best it had before."""
        if last is not None and last[0] == "plan":
            plan = last[1]
            self._finish(job, _STATES[plan["status"]], began, plan={**plan, "stopped_by": "time"})
            return
        detail = (
            f"Planning did not stop at its time limit of {job.time_limit_s:g} s and was ended "
            f"{self._settings.overrun_s:g} s later."
        )
        logger.warning("job %s: %s", job.id, detail)
        error = {"type": "LimitReachedError", "detail": detail}
        state = self._ask(self._queue.run_out, job.id, self.id, error, time.monotonic() - began)
        if state is not None:
            _trace(job, state)

    def _finish(
        self, job: Job, state: State, began: float, *, plan: Document | None = None, error: Document | None = None
    ) -> None:
        seconds = time.monotonic() - began
        self._ask(self._queue.finish, job.id, self.id, state, plan=plan, error=error, seconds=seconds)
        _trace(job, state, plan)

    def _ask(
        self, call: Callable[ArgumentsP, ResultT], *arguments: ArgumentsP.args, **named: ArgumentsP.kwargs
    ) -> ResultT:
        """Ask the store about the job that runs. A store that is busy or away is asked again: the job goes on, and
        whether its lease was lost, the store tells when it is back."""
        while True:
            try:
                return call(*arguments, **named)
            except (OperationalError, InterfaceError) as error:
                if self._stopping:
                    raise
                logger.warning("the database does not answer; the job goes on: %s", error.orig)
                time.sleep(_RETRY_PAUSE_S)


def _trace(job: Job, outcome: State, plan: Document | None = None) -> None:
    """Spans of an attempt that has ended."""
    telemetry.record_job(
        job.traceparent,
        {"loadmaster.job": job.id, "loadmaster.kind": job.kind, "loadmaster.attempt": job.attempts},
        created_at=job.created_at,
        started_at=job.started_at or job.created_at,
        outcome=outcome.value,
        seconds={} if plan is None else plan.get("seconds", {}),
    )
