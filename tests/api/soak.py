"""Servers and workers on one database, many small jobs, and processes that are killed at random meanwhile.

``python -m tests.api.soak`` is one of its workers, set by the environment: its jobs are threads, so that the store and
the queue are what is worked hardest.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import sqlalchemy as sa

from loadmaster.api.settings import Settings
from loadmaster.api.store import figures, schema
from loadmaster.api.store.database import Database
from loadmaster.api.store.records import State
from loadmaster.api.worker.worker import Worker

HERE = Path(__file__).parent
LEASE_S = 3.0
SUBMITTERS = 4
_LOOK_EVERY_S = 0.2
SERVE = "from loadmaster.api.serve import serve; from loadmaster.api.settings import Settings"
SERVE += "; serve(Settings.from_environment())"
WORKERS = {"process": "loadmaster.api.worker", "thread": "tests.api.soak"}


@dataclass(frozen=True)
class Soak:
    """What to run: every fifth job is equal to an earlier one, every tenth is submitted twice.

    Attributes:
        kill_every: after so many more jobs have ended a worker is killed, and every fourth time a server as well:
            by the jobs and not by the clock, so that a slow machine comes to an end, too.
        launch: ``process``, each job in an interpreter of its own as outside the tests, or ``thread``.
    """

    database_url: str
    jobs: int
    servers: int = 2
    workers: int = 4
    kill_every: int = 5
    launch: str = "process"
    seed: int = 0


@dataclass
class Outcome:
    """What happened. ``wrong`` is empty when no job was lost, doubled or miscounted."""

    seconds: float
    submit_seconds: float
    repeated_submissions: int
    killed_workers: int
    killed_servers: int
    started_again: int
    answered_from_cache: int
    wrong: list[str]


class _Process:
    """A server or a worker, which is started again when it was killed."""

    def __init__(self, command: list[str], settings: Settings, log: Path) -> None:
        self._command, self._log = [sys.executable, *command], log
        path = os.pathsep.join([str(HERE), str(HERE.parents[1])])
        self._environment = {**os.environ, **settings.to_environment(), "PYTHONPATH": path}
        self.start()

    def start(self) -> None:
        self._begin = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, env=self._environment, stdin=subprocess.DEVNULL, stderr=log)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait()

    @property
    def url(self) -> str | None:
        """Where a server says that it listens; None before it does."""
        found = re.search(rb"running on (http://[\d.:]+)", self._log.read_bytes()[self._begin :])
        return None if found is None else found[1].decode()


class Run:
    """A :class:`Soak` that runs. Logs go to ``folder``."""

    def __init__(self, soak: Soak, folder: Path) -> None:
        self._soak, self._random = soak, random.Random(soak.seed)
        settings = Settings(
            database_url=soak.database_url,
            planner="fake_planner:FakePlanner",
            workers=0,
            port=0,
            poll_s=0.05,
            lease_s=LEASE_S,
            # A job may be the unlucky one several times.
            max_attempts=100,
            max_queued_jobs=soak.jobs,
        )
        self._servers = [_Process(["-c", SERVE], settings, folder / f"server-{n}.log") for n in range(soak.servers)]
        worker = ["-m", WORKERS[soak.launch]]
        self._workers = [_Process(worker, settings, folder / f"worker-{n}.log") for n in range(soak.workers)]
        self._database = Database(soak.database_url)
        self._http = httpx.Client(timeout=30.0)
        self._done = threading.Event()
        self._repeated = self._killed_workers = self._killed_servers = 0

    def outcome(self) -> Outcome:
        """Submit all, wait for all, look at what the store then holds."""
        began = time.monotonic()
        killer = threading.Thread(target=self._kill_now_and_then)
        killer.start()
        try:
            with ThreadPoolExecutor(SUBMITTERS) as pool:
                ids = list(pool.map(self._submit, range(self._soak.jobs)))
            submitted = time.monotonic()
            while self._ended() < self._soak.jobs:
                time.sleep(_LOOK_EVERY_S)
            ended = time.monotonic()
        finally:
            self._done.set()
            killer.join()
            for process in (*self._workers, *self._servers):
                process.stop()
        hits = int(figures.read(self._database).cache_hits)
        with self._database.read() as connection:
            again = connection.scalar(sa.select(sa.func.count()).where(schema.job.c.attempts > 1)) or 0
        return Outcome(
            seconds=round(ended - began, 2),
            submit_seconds=round(submitted - began, 2),
            repeated_submissions=self._repeated,
            killed_workers=self._killed_workers,
            killed_servers=self._killed_servers,
            started_again=again,
            answered_from_cache=hits,
            wrong=self._wrong(ids, hits),
        )

    def _submit(self, number: int) -> str:
        """Submit until a server answers, to whichever is up; always under the same key."""
        distinct = max(1, self._soak.jobs * 4 // 5)
        problem = {"kind": "fake", "name": f"job {number % distinct}", "behaviour": "quick"}
        wanted, answers = 2 if number % 10 == 0 else 1, set[str]()
        while wanted:
            url = self._servers[self._random.randrange(len(self._servers))].url
            try:
                headers = {"Idempotency-Key": f"job {number}"}
                answer = self._http.post(f"{url}/v1/plans", json={"problem": problem}, headers=headers)
            except (httpx.TransportError, httpx.UnsupportedProtocol):
                self._repeated += 1
                time.sleep(0.05)
                continue
            answer.raise_for_status()
            answers.add(answer.json()["id"])
            wanted -= 1
        (job_id,) = answers
        return job_id

    def _kill_now_and_then(self) -> None:
        while not self._done.wait(_LOOK_EVERY_S * self._random.random()):
            if self._ended() < (self._killed_workers + 1) * self._soak.kill_every:
                continue
            worker = self._random.choice(self._workers)
            worker.kill()
            worker.start()
            self._killed_workers += 1
            if self._killed_workers % 4 == 0:
                server = self._random.choice(self._servers)
                server.kill()
                server.start()
                self._killed_servers += 1

    def _ended(self) -> int:
        with self._database.read() as connection:
            final = schema.job.c.state.not_in([State.QUEUED.value, State.RUNNING.value])
            return connection.scalar(sa.select(sa.func.count()).where(final)) or 0

    def _wrong(self, ids: list[str], hits: int) -> list[str]:
        """Everything that should not be."""
        columns, events = schema.job.c, schema.event.c
        with self._database.read() as connection:
            jobs = connection.execute(sa.select(schema.job)).all()
            kept: dict[str, list[tuple[int, str]]] = {job.id: [] for job in jobs}
            for job_id, seq, type_ in connection.execute(
                sa.select(events.job_id, events.seq, events.type).order_by(events.job_id, events.seq)
            ):
                kept[job_id].append((seq, type_))
            workers = connection.scalar(sa.select(sa.func.count()).select_from(schema.worker))
            starts = connection.scalar(sa.select(sa.func.sum(columns.attempts)))
        wrong = []
        if sorted(ids) != sorted(job.id for job in jobs):
            wrong.append(f"{len(ids)} were submitted, {len(jobs)} are in the store, not the same")
        for job in jobs:
            types = [type_ for _, type_ in kept[job.id]]
            if (job.state, job.objective) != ("succeeded", 100.0):
                wrong.append(f"{job.id} is {job.state} with {job.objective}")
            if types.count("done") != 1 or types[-1] != "done":
                wrong.append(f"{job.id} ended {types.count('done')} times")
            if [seq for seq, _ in kept[job.id]] != list(range(1, job.event_seq + 1)):
                wrong.append(f"{job.id} lacks events")
        solved = dict(figures.read(self._database).histograms["solve_seconds"].buckets)["+Inf"]
        if solved + hits != self._soak.jobs:
            wrong.append(f"{solved:g} ends and {hits} answers from the cache were counted")
        if starts is None or starts < solved:
            wrong.append(f"{starts} starts for {solved:g} ends")
        # Of the killed, those of the last seconds may be there still.
        if workers is None or workers > self._killed_workers:
            wrong.append(f"{workers} workers are in the store, all were stopped")
        return wrong


def _work() -> None:
    from thread_job import ThreadJob

    worker = Worker(Settings.from_environment(), launch=ThreadJob)
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    worker.run()


if __name__ == "__main__":
    _work()
