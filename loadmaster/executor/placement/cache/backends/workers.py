"""Threads that copy: first come, first served, and nobody waits for a thread that is gone."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from loadmaster.errors import LoadmasterError

_LOOK_S = 0.2  # a waiting thread looks this often whether there still is anybody to wait for


class Group:
    """Jobs that together make one copy, done by ``workers``."""

    def __init__(self, jobs: int, workers: Workers) -> None:
        self._workers = workers
        self._left, self._begun, self._cancelled = jobs, False, False
        self._error: LoadmasterError | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()
        if not jobs:
            self._over.set()

    def begin(self) -> bool:
        """Return whether a job of the group may run, which begins the group."""
        with self._lock:
            self._begun = self._begun or not self._cancelled
            return not self._cancelled

    def end(self, error: LoadmasterError | None = None) -> None:
        """Count one job as over, with its error if it failed."""
        with self._lock:
            self._error = self._error or error
            self._left -= 1
            if not self._left:
                self._over.set()

    def cancel(self) -> bool:
        """Cancel the group if no job has begun; return whether it is cancelled."""
        with self._lock:
            if not self._begun and not self._over.is_set():
                self._cancelled = True
                self._over.set()
            return self._cancelled

    def over(self) -> bool:
        """Return whether all jobs are over, or none will begin."""
        return self._over.is_set()

    def failure(self) -> LoadmasterError | None:
        """Return the first error of a job; None where all went well."""
        return self._error

    def wait(self) -> None:
        """Wait until the group is over; jobs whose threads are gone fail."""
        while not self._over.wait(_LOOK_S):
            self._workers.fail_what_nobody_does()


class Workers:
    """A few daemon threads, named for debuggers, and their queue."""

    def __init__(self, count: int, name: str) -> None:
        self._queue: deque[tuple[Group, Callable[[], None]]] = deque()
        self._ready = threading.Condition()
        self._closed = False
        self.threads = [threading.Thread(target=self._work, name=f"{name}-{n}", daemon=True) for n in range(count)]
        for thread in self.threads:
            thread.start()

    def submit(self, group: Group, job: Callable[[], None]) -> None:
        """Queue a job of a group; a thread does it when its turn comes."""
        with self._ready:
            self._queue.append((group, job))
            self._ready.notify()

    def fail_what_nobody_does(self) -> None:
        """Fail queued jobs where no thread is left."""
        if any(thread.is_alive() for thread in self.threads):
            return
        while self._queue:
            group, _ = self._queue.popleft()
            if group.begin():
                group.end(_gone())

    def close(self) -> None:
        """End the threads when the jobs at hand are done; queued jobs fail."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()
        for thread in self.threads:
            if thread is not threading.current_thread():
                thread.join()
        self.fail_what_nobody_does()

    def _work(self) -> None:
        while self._one():
            pass

    def _one(self) -> bool:
        """Wait for a job and do it; return whether there may be more. It is let go of before the next wait."""
        group: Group | None = None
        try:
            with self._ready:
                while not self._queue and not self._closed:
                    self._ready.wait()
                if self._closed:
                    return False
                group, job = self._queue.popleft()
            if group.begin():
                group.end(_done(job))
        except BaseException:  # noqa: BLE001, the thread is told to end
            if group is not None:
                group.end(_gone())
            return False
        return True


def _done(job: Callable[[], None]) -> LoadmasterError | None:
    """Do a job; return its error, None where it went well."""
    try:
        job()
    except LoadmasterError as error:
        return error
    except Exception as error:  # noqa: BLE001, whoever waits raises it
        return LoadmasterError(f"a copy of what the backward pass needs failed: {error!r}")
    return None


def _gone() -> LoadmasterError:
    return LoadmasterError(
        "a thread that copies what the backward pass needs was ended from outside. Gradients of this step cannot be "
        "had if it was reading; repeat the step under a new TensorCache."
    )
