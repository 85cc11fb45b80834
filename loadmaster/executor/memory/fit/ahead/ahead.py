"""Compiling ahead: helper processes fill Inductor's cache on disk with what a fit is about to compile.

Three quarters of a compilation are Inductor's Python, and of that one process runs one thread at a time. So halves of
steps are compiled in processes of their own, from the captured graph: the backward graph while this process compiles
the forward graph, and a plan while the knob is compiled and timed. Then this process compiles as ever, and finds in
the cache what was compiled ahead; where a helper could not do it, or too late, it compiles it itself.

Helpers stand still while something is timed, and end with the fit.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import torch
from torch import fx
from torch._inductor import config

from loadmaster.executor.memory.fit.ahead.job import Half, Job, Part
from loadmaster.executor.memory.fit.beside import cores
from loadmaster.executor.memory.operators.implementation_filter import EVERYTHING, ImplementationFilter
from loadmaster.executor.steps.sent_graph import TorchSettings, sent
from loadmaster.models.memory.plan import MemoryPlan

logger = logging.getLogger(__name__)

CORES_EACH = 4  # for a helper and what compiles its kernels
MOST = 4
LEAST = 2  # of helpers: with fewer cores than these take nothing is compiled ahead
ROOM_BYTES = 1 << 30  # of the device: a helper's CUDA context takes half of it
# One that began so lately is not waited for before this process has compiled anything: that is as fast by itself.
HEAD_START_S = 10.0
_LOOK_EVERY_S = 0.05  # Ctrl-C is answered between two looks


class Helper:
    """A process that gets ready, and compiles one job."""

    def __init__(self, threads: int) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        environment["TORCHINDUCTOR_COMPILE_THREADS"] = str(threads)
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end
        # A group of its own, so that what it starts stops and ends with it. In this session: where this process dies,
        # the system ends what stands still.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "loadmaster.executor.memory.fit.ahead.helper"],
            stdin=subprocess.PIPE,
            stdout=self._said,
            stderr=self._said,
            env=environment,
            process_group=0,
        )
        self.began: float | None = None
        """When it got its job."""

    def begin(self, path: Path) -> None:
        """Let it compile the job."""
        self.began = time.perf_counter()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{path}\n".encode())
            self._process.stdin.flush()

    def has_ended(self) -> bool:
        """Whether it is gone."""
        return self._process.poll() is not None

    def send(self, number: signal.Signals) -> None:
        """A signal, to it and to what it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def end(self) -> str | None:
        """End it; returns why it compiled nothing, where it ended by itself and that is so."""
        failed = self.began is not None and self._process.poll() not in (None, 0)
        self.send(signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines() if failed else []
        self._said.close()
        return (lines or ["it said nothing"])[-1] if failed else None


class _Wanted:
    """A job, and the helper that is at it or was."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.helper: Helper | None = None


class Ahead:
    """The helpers of a fit, and what they are to compile."""

    def __init__(self) -> None:
        self._graph: bytes | None = None
        self._convolves = False
        self._settings: TorchSettings | None = None
        self._most = 0
        self._folder: Path | None = None
        self._spare: list[Helper] = []
        self._wanted: list[_Wanted] = []
        self._written = 0
        self._lock = threading.Lock()  # plans come from a thread of their own

    @contextlib.contextmanager
    def during_fit(self, *, wanted: bool) -> Iterator[None]:
        """Helpers may run inside, where there are cores to spare and a cache to fill."""
        self._most = _most() if wanted else 0
        try:
            yield
        finally:
            self._most = 0
            self.end()

    def get_ready(self) -> None:
        """Start helpers, for what comes: they take a while to import what they need."""
        with self._lock:
            while len(self._spare) < self._most:
                self._spare.append(self._new())

    def take(self, module: fx.GraphModule) -> None:
        """Dynamo's graph of the step, which jobs begin with."""
        try:
            self._graph, self._settings = sent(module), TorchSettings.here()
            self._convolves = any("conv" in str(node.target) for node in module.graph.nodes)
        except Exception as error:  # noqa: BLE001 - of whatever is in the graph
            logger.info("nothing is compiled ahead: %s: %s", type(error).__name__, error)
            self._graph = None
            self.end()

    def leave_room(self, device: torch.device, budget_bytes: int) -> None:
        """Let no more helpers run than have room on the device beside a step within the budget."""
        if device.type == "cuda" and self._most:
            present_bytes = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
            self._most = max(0, min(self._most, (present_bytes - budget_bytes) // ROOM_BYTES))
        with self._lock:
            while len(self._spare) > self._most:
                self._spare.pop().end()

    def knob(self, value: float) -> None:
        """Have the backward graph compiled, since this process is about to compile the forward graph.

        Of convolutions it depends on how the forward graph was compiled, so that nothing is gained.
        """
        if not self._convolves:
            self._compile(value, "backward", EVERYTHING)

    def plan(self, plan: MemoryPlan, implementations: ImplementationFilter = EVERYTHING) -> None:
        """Have a planned step compiled."""
        parts: tuple[Part, ...] = ("whole",) if self._convolves else ("backward", "forward")
        for part in parts:
            self._compile(plan, part, implementations)

    def wait(self, how: float | MemoryPlan, half: Half) -> None:
        """Before half of a step is compiled here: wait for the helper that is at it; none may begin it now."""
        with self._lock:
            wanted = self._find(how, half)
            if wanted is None:
                return
            helper = wanted.helper
            began = None if helper is None else helper.began
            if began is None or (half == "forward" and time.perf_counter() - began < HEAD_START_S):
                self._drop(wanted)
                return
        assert helper is not None
        while not helper.has_ended():
            time.sleep(_LOOK_EVERY_S)
        with self._lock:
            self._drop(wanted)
            self._go_on()

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[None]:
        """Nothing is compiled ahead inside."""
        with self._lock:
            helpers = [*self._spare, *(w.helper for w in self._wanted if w.helper is not None)]
        try:
            for helper in helpers:
                helper.send(signal.SIGSTOP)
            yield
        finally:
            for helper in helpers:
                helper.send(signal.SIGCONT)

    def end(self) -> None:
        """Nothing more is wanted."""
        with self._lock:
            for wanted in [*self._wanted]:
                self._drop(wanted)
            while self._spare:
                self._spare.pop().end()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = None

    def _compile(self, how: float | MemoryPlan, part: Part, implementations: ImplementationFilter) -> None:
        with self._lock:
            if self._graph is None or self._settings is None or not self._most or self._find(how, part) is not None:
                return
            self._wanted.append(_Wanted(Job(self._graph, self._settings, how, part, implementations)))
            self._go_on()

    def _find(self, how: float | MemoryPlan, part: Part) -> _Wanted | None:
        return next((w for w in self._wanted if w.job.part in (part, "whole") and _is_same(w.job.how, how)), None)

    def _go_on(self) -> None:
        """Begin what waits, as far as there may be more helpers."""
        for wanted in self._wanted:
            at_work = sum(w.helper is not None and not w.helper.has_ended() for w in self._wanted)
            if wanted.helper is None and at_work < self._most:
                if self._folder is None:
                    self._folder = Path(tempfile.mkdtemp(prefix="loadmaster-ahead-"))
                path = self._folder / str(self._written)
                self._written += 1
                wanted.job.save(path)
                wanted.helper = self._spare.pop() if self._spare else self._new()
                wanted.helper.begin(path)

    def _drop(self, wanted: _Wanted) -> None:
        self._wanted.remove(wanted)
        said = None if wanted.helper is None else wanted.helper.end()
        if said is not None:
            logger.info("compiled here, since a helper could not: %s", said)

    def _new(self) -> Helper:
        return Helper(max(1, cores() // (self._most + 1)))


def _is_same(one: Any, other: Any) -> bool:
    return one is other or (isinstance(one, float) and isinstance(other, float) and one == other)


def _most() -> int:
    """How many helpers may run; 0: what they compile would not be found, or takes the cores of who waits for it."""
    has_cache = config.fx_graph_cache and not config.force_disable_caches
    most = min(MOST, cores() // CORES_EACH) if has_cache and hasattr(os, "killpg") else 0
    return most if most >= LEAST else 0
