"""Jobs on the machines of a Ray cluster: the engine ``ray``.

Each job gets an actor, wherever the cluster has a processor free, and the actor starts there what a worker would start
on its own machine: :class:`~loadmaster.api.worker.process.LocalJob`. So a job has its own process, limits and cancel on
either engine, and the same plan. Ray starts nothing twice: what died is for the queue to try again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
from typing import Any

from loadmaster.api.settings import Settings
from loadmaster.api.worker.process import CRASH, LocalJob, Message
from loadmaster.errors import InputError, MissingExtraError
from loadmaster.models.documents import Document

__all__ = ["RayJob", "connect", "expect_ray", "places"]

_LISTEN_S = 1.0
_END_WITHIN_S = 5.0
_LONGEST_REASON = 600
_CANCELLED: Message = (CRASH, "it was cancelled before it had a place to run")
_WAITING: Message = ("log", "waiting for a processor of the Ray cluster")


def expect_ray() -> None:
    """Raise MissingExtraError where Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise MissingExtraError("ray", "ray")


def connect() -> None:
    """Join the cluster that ``RAY_ADDRESS`` names, or else the one that runs on this machine. Raises MissingExtraError
    if Ray is not installed, InputError if there is no such cluster."""
    expect_ray()
    import ray

    try:
        ray.init(address="auto", ignore_reinit_error=True, log_to_driver=False)
    except ConnectionError as error:
        said = str(error).partition(". ")[0]
        remedy = "Start one (ray start --head), or set RAY_ADDRESS to that of one that runs."
        raise InputError("engine", "ray", f"has no cluster to join: {said}", remedy) from None


def places() -> int:
    """The number of jobs to have under way: one for each processor of the cluster as it is now, and one that waits: a
    cluster that grows on demand grows for that."""
    import ray

    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return int(resources.get("CPU", 0)) + 1


class RayJob:
    """A :class:`~loadmaster.api.worker.process.RunningJob` on one processor of the cluster."""

    def __init__(self, problem: bytes, options: Document, settings: Settings) -> None:
        import ray

        self._ray = ray
        # The password in it is nothing that the job needs.
        settings = dataclasses.replace(settings, database_url="sqlite://")
        # Two calls at a time: one listens, the other cancels or kills.
        actor: Any = ray.remote(LocalJob)
        placed = actor.options(num_cpus=1, max_concurrency=2, scheduling_strategy="SPREAD")
        self._there = placed.remote(problem, dict(options), settings)
        self._said: Any = self._there.listen.remote(0.0)
        self._first: list[Message] = [_WAITING]
        self.waiting = True
        self._over = False

    def listen(self, timeout_s: float) -> list[Message]:
        if self._first:
            first, self._first = self._first, []
            return first
        if self._over:
            return [_CANCELLED]
        done, _ = self._ray.wait([self._said], timeout=timeout_s)
        if not done:
            return []
        try:
            messages: list[Message] = self._ray.get(self._said)
        except self._ray.exceptions.RayError as error:
            self._over = True
            return [(CRASH, f"the Ray worker that ran it ended: {' '.join(str(error).split())}"[:_LONGEST_REASON])]
        self.waiting = False
        self._over = any(kind in ("plan", "error", CRASH) for kind, _ in messages)
        if not self._over:
            self._said = self._there.listen.remote(_LISTEN_S)
        return messages

    def cancel(self) -> None:
        if self.waiting:
            self._over = True
        else:
            self._there.cancel.remote()

    def kill(self) -> None:
        with contextlib.suppress(self._ray.exceptions.RayError):
            if not (self.waiting or self._over):
                # In good order first: what the job has started ends with it for certain only so.
                self._ray.get(self._there.kill.remote(), timeout=_END_WITHIN_S)
        self._ray.kill(self._there)
        with contextlib.suppress(self._ray.exceptions.RayError):
            # Ray prints what went wrong where nobody asks.
            self._ray.get(self._said, timeout=_END_WITHIN_S)
