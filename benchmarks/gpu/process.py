"""Process of a row: started with an order, it writes what it finds; rows compile side by side, and one at a time runs.

The one that runs holds a lock on a file that all of them know.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.budgets import Row

ROOT = Path(__file__).resolve().parents[2]
# Cores that only a row that is alone runs on, and it on no others, where there are twice as many others. Other rows go
# on compiling; on the same cores they would hold up its launches.
OWN_CORES = 4


def run_row(command: Sequence[str], order: Row, log: Path, limit_s: float, environment: Mapping[str, str]) -> Row:
    """Run a module on an order in a process of its own, and return what it found, or an ``error``.

    Args:
        command: the module, and its arguments before the order.
        order: what is measured; the process writes to its ``result``.
        log: where the output goes.
        limit_s: seconds after which the process is stopped.
        environment: in addition to this process's own.
    """
    result = log.with_suffix(".json")
    result.unlink(missing_ok=True)
    log.parent.mkdir(exist_ok=True)
    words = [sys.executable, "-m", *command, json.dumps({**order, "result": str(result)})]
    with log.open("w") as said:
        process = subprocess.Popen(
            words, cwd=ROOT, stdout=said, stderr=said, env={**os.environ, **environment}, start_new_session=True
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(limit_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and its compilers
        process.wait()
    if result.exists():
        return dict(json.loads(result.read_text()))
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return {"error": f"ended: {lines[-1][:300] if lines else 'it said nothing'}"}


class Turn:
    """Turn of a row on the GPU: alone from :meth:`take` on, until :meth:`end`.

    Args:
        lock: path of the file that rows lock; None where no others run.

    Attributes:
        waited_s: seconds that the row has waited for its turns.
    """

    def __init__(self, lock: str | None) -> None:
        self.waited_s = 0.0
        self._lock = None if lock is None else os.open(lock, os.O_CREAT | os.O_RDWR)
        self._is_held = False
        cores = sorted(os.sched_getaffinity(0))
        self._divides = lock is not None and len(cores) >= 3 * OWN_CORES
        self._own, self._shared = cores[:OWN_CORES], cores[OWN_CORES:]
        self._run_on(self._shared)

    def take(self) -> None:
        """Be alone from here on."""
        if self._is_held or self._lock is None:
            return
        start = time.perf_counter()
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.waited_s += time.perf_counter() - start
        self._is_held = True
        self._run_on(self._own)

    def end(self) -> None:
        """Let others run, and give them the memory that PyTorch keeps for later."""
        if not self._is_held or self._lock is None:
            return
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        self._run_on(self._shared)
        self._is_held = False
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _run_on(self, cores: Iterable[int]) -> None:
        """Bind all threads of this process, and what it starts later, to some cores."""
        for thread in os.listdir("/proc/self/task") if self._divides else ():
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                os.sched_setaffinity(int(thread), cores)


def first_runs_alone(turn: Turn) -> None:
    """Patch PyTorch so that this row compiles next to others, and is alone from the first run of compiled code.

    In it variants of kernels are tried. In a fit the turn ends when the trial is measured.
    """
    import torch._functorch.config as functorch_config
    from torch._inductor.output_code import CompiledFxGraph

    from loadmaster.executor.memory.fit import trial_runs

    functorch_config.force_non_lazy_backward_lowering = True  # before the first run
    run, run_trial, look = CompiledFxGraph.__call__, trial_runs.run_trial, trial_runs.TrialRuns.alone

    def runs(graph: Any, inputs: Any) -> Any:
        turn.take()
        return run(graph, inputs)

    def tried(*arguments: Any, warmed_up: Callable[[], None], **options: Any) -> Any:
        def alone() -> None:
            warmed_up()
            turn.take()

        try:
            return run_trial(*arguments, warmed_up=alone, **options)
        finally:
            turn.end()

    def looked(*arguments: Any) -> Any:
        try:
            return look(*arguments)
        finally:
            turn.end()

    CompiledFxGraph.__call__ = runs
    trial_runs.run_trial, trial_runs.TrialRuns.alone = tried, looked
