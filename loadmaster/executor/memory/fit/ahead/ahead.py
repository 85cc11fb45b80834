"""Compiling ahead: helper processes fill Inductor's cache on disk with what a fit is about to compile.

Three quarters of a compilation are Inductor's Python, of which one process runs one thread at a time. So halves of
steps are compiled from the captured graph in processes of their own: the knob while a plan is made, compiled and timed,
and a backward graph while this process compiles the forward graph. This process finds them in the cache then, and
compiles itself what no helper has compiled in time. Of a plan's backward graph the helper compiles the last segments
first, and both go on until they meet. Helpers stand still while something is timed, and end with the fit.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import fx

from loadmaster.executor.memory.fit.ahead.helper import Helper
from loadmaster.executor.memory.fit.ahead.job import Job, Part
from loadmaster.executor.memory.implementations.registry import EVERYTHING, ImplementationFilter
from loadmaster.executor.steps.host_link import cores
from loadmaster.executor.steps.sent_graph import TorchSettings, sent
from loadmaster.executor.steps.step_graph import tensors
from loadmaster.executor.steps.tracing import Half
from loadmaster.executor.torch_private.inductor import inductor_config
from loadmaster.models.memory.plan import MemoryPlan

logger = logging.getLogger(__name__)

CORES_EACH = 4  # for a helper and what compiles its kernels
MOST = 3
LEAST = 2  # of helpers: with fewer cores than these take nothing is compiled ahead
ROOM_BYTES = 1 << 30  # of the device: a helper's CUDA context takes half of it
# One that began so lately is not waited for before this process has compiled anything: that is as fast by itself. It
# has the graph to trace first, as this process has when it asks.
HEAD_START_S = 15.0
PATIENCE_S = 60.0  # one is waited for so long, or as long again as it has run: it may hang
_LOOK_EVERY_S = 0.05  # Ctrl-C is answered between two looks


class _Wanted:
    """A job that is to be compiled, and the helper that has it, if one does."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.helper: Helper | None = None


class Ahead:
    """The helpers of a fit, if any are ``wanted``, and what they are to compile. A failure is logged, and nothing is
    compiled ahead from then on."""

    def __init__(self, *, wanted: bool = True) -> None:
        self._is_wanted = wanted
        self._graph: bytes | None = None
        self._convolves = self._pads = False
        self._settings: TorchSettings | None = None
        self._most = 0
        self._folder: Path | None = None
        self._spare: list[Helper] = []
        self._wanted: list[_Wanted] = []
        self._written = 0
        self._met: _Wanted | None = None  # this process compiles the same from the other end
        self._is_compiling = False
        self._is_beside_training = False
        self._lock = threading.RLock()  # plans come from a thread of their own, and an end from anywhere

    @contextlib.contextmanager
    def during_fit(self) -> Iterator[None]:
        """Let helpers run inside the context, where there are cores to spare and a cache to fill."""
        self._most = self._allowed()
        try:
            yield
        finally:
            self._most = 0
            self._is_beside_training = False
            self.end()

    @property
    def is_at_work(self) -> bool:
        """True if a step is known and helpers may run."""
        return self._graph is not None and self._most > 0

    def get_ready(self) -> None:
        """Start helpers, for what comes: they take a while to import what they need."""
        with self._or_nothing(), self._lock:
            while len(self._spare) < self._most:
                self._spare.append(self._new())

    def take(self, module: fx.GraphModule) -> None:
        """Take Dynamo's graph of the step, which jobs begin with."""
        if self._allowed():
            with self._or_nothing():
                self._graph, self._settings = sent(module), TorchSettings.here()
                self._convolves = any("conv" in str(node.target) for node in module.graph.nodes)
                self._pads = any(is_padded(t) for n in module.graph.nodes for t in tensors(n.meta.get("example_value")))

    def leave_room(self, device: torch.device, budget_bytes: int) -> None:
        """Let no more helpers run than have room on the device next to a step within the budget."""
        if device.type == "cuda" and self._most:
            present_bytes = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
            self._most = max(0, min(self._most, (present_bytes - budget_bytes) // ROOM_BYTES))
        self._end_spare()

    def go_on_beside_training(self) -> None:
        """Compile whole steps from now on, one at a time: the step that trains needs processor and device itself."""
        self._is_beside_training = True
        self._most = min(1, self._most)
        self._end_spare()

    def knob(self, value: float) -> None:
        """Have the step compiled under torch.compile's knob, ``activation_memory_budget``."""
        self._compile(value, EVERYTHING)

    def plan(self, plan: MemoryPlan, implementations: ImplementationFilter = EVERYTHING) -> None:
        """Have a planned step compiled: of one that this process is about to compile, the backward graph alone."""
        self._compile(plan, implementations)

    def is_at(self, how: float | MemoryPlan) -> bool:
        """Return whether a helper is compiling this step now."""
        with self._lock:
            ours = self._helpers(how)
        return any(helper is not None and not helper.has_ended() for helper in ours)

    def is_pending(self, how: float | MemoryPlan) -> bool:
        """Return whether a helper is compiling this step, or will."""
        pending = False
        with self._or_nothing(), self._lock:
            self._go_on()
            pending = any(helper is None or not helper.has_ended() for helper in self._helpers(how))
        return pending

    def wait(self, how: float | MemoryPlan, half: Half) -> None:
        """Wait for the helper that compiles this half of a step, before it is compiled here; none may begin it now. One
        that is at a plan's backward graph is not waited for: it goes on until this process has compiled it."""
        helper = None
        with self._or_nothing(), self._lock:
            wanted = self._find(how, half)
            if wanted is not None and wanted.helper is not None and half == "backward" and isinstance(how, MemoryPlan):
                self._met = wanted
                return
            if wanted is not None and _is_worth_waiting_for(wanted.helper, half):
                helper = wanted.helper
            elif wanted is not None:
                self._drop(wanted)
                self._go_on()
        if wanted is None or helper is None or helper.began is None:
            return
        now = time.perf_counter()
        until = now + max(PATIENCE_S, now - helper.began)
        while not helper.has_ended() and time.perf_counter() < until:
            time.sleep(_LOOK_EVERY_S)
        if not helper.has_ended():
            logger.info("compiled here, since a helper takes too long")
        with self._or_nothing(), self._lock:
            self._drop(wanted)
            self._go_on()

    @contextlib.contextmanager
    def compiling_here(self) -> Iterator[None]:
        """Context in which this process compiles: plans that are made meanwhile wait for it."""
        self._is_compiling = True
        try:
            yield
        finally:
            self._is_compiling = False
            with self._or_nothing(), self._lock:
                if self._met is not None:
                    self._drop(self._met)
                    self._met = None
                    self._go_on()

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[None]:
        """Stop all helpers while the context lasts."""
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
        """End all helpers, and drop what they were to compile."""
        with self._lock:
            for wanted in [*self._wanted]:
                self._drop(wanted)
            while self._spare:
                self._spare.pop().end()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = None

    def _end_spare(self) -> None:
        with self._lock:
            while len(self._spare) > self._most:
                self._spare.pop().end()

    def _compile(self, how: float | MemoryPlan, implementations: ImplementationFilter) -> None:
        # torch.compile's own backward graph depends on how the forward graph was compiled where there are convolutions
        # or results with padded rows. A plan fixes the layout of images, and keeps no such rows: its loss is in chunks.
        parts: tuple[Part, ...] = ("backward", "forward")
        if not isinstance(how, MemoryPlan):
            parts = ("whole",) if self._convolves or self._pads else parts
        elif not (self._is_compiling or self._is_beside_training):
            parts = ("backward",)
        with self._or_nothing(), self._lock:
            if self._graph is None or self._settings is None or not self._most:
                return
            for part in parts:
                if self._find(how, part) is None:
                    self._wanted.append(_Wanted(Job(self._graph, self._settings, how, part, implementations)))
            self._go_on()

    @contextlib.contextmanager
    def _or_nothing(self) -> Iterator[None]:
        """End all helpers, and nothing else, where something goes wrong inside the context."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - of the system, or of what cannot be sent
            logger.info("nothing is compiled ahead: %s: %s", type(error).__name__, error)
            self._is_wanted, self._most = False, 0
            self.end()

    def _allowed(self) -> int:
        return _most() if self._is_wanted else 0

    def _helpers(self, how: float | MemoryPlan) -> list[Helper | None]:
        """Helper of each of the step's jobs; None for a job that waits."""
        return [w.helper for w in self._wanted if _is_same(w.job.how, how)]

    def _find(self, how: float | MemoryPlan, part: Part) -> _Wanted | None:
        return next((w for w in self._wanted if w.job.part in (part, "whole") and _is_same(w.job.how, how)), None)

    def _go_on(self) -> None:
        """Begin the jobs that wait, as far as more helpers may run."""
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
        if wanted not in self._wanted:  # something went wrong meanwhile
            return
        self._wanted.remove(wanted)
        said = None if wanted.helper is None else wanted.helper.end()
        if said is not None:
            logger.info("compiled here, since a helper could not: %s", said)

    def _new(self) -> Helper:
        return Helper(max(1, cores() // (self._most + 1)))


def is_padded(tensor: torch.Tensor) -> bool:
    """Return whether Inductor pads the rows of such a result: on a GPU, long ones that begin at odd addresses."""
    if tensor.device.type != "cuda" or not inductor_config.comprehensive_padding:
        return False
    return any(
        stride > inductor_config.padding_stride_threshold
        and stride * tensor.itemsize % inductor_config.padding_alignment_bytes
        for stride in tensor.stride()
    )


def _is_worth_waiting_for(helper: Helper | None, half: Half) -> bool:
    if helper is None or helper.began is None:
        return False
    return half == "backward" or time.perf_counter() - helper.began >= HEAD_START_S


def _is_same(one: Any, other: Any) -> bool:
    return one is other or (isinstance(one, float) and isinstance(other, float) and one == other)


def _most() -> int:
    """Most helpers that may run; 0: what they compile is not found, or they take cores from the process that waits."""
    has_cache = inductor_config.fx_graph_cache and not inductor_config.force_disable_caches
    most = min(MOST, cores() // CORES_EACH) if has_cache and hasattr(os, "killpg") else 0
    return most if most >= LEAST else 0
