"""Protocol by which a row's process speaks with the scheduler, and gets the machine to itself."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

import torch

MARK = "@@ "
# Cores that only a row that is alone runs on, and it on no others, where there are twice as many others.
OWN_CORES = 4


class Link:
    """Line to the scheduler, and the right to be alone that is asked for over it.

    Args:
        hears, says: where the scheduler's lines come from, and where this row's go.
    """

    def __init__(self, hears: TextIO, says: TextIO) -> None:
        self._hears, self._says = hears, says
        self.waited_s = 0.0
        self._depth = 0
        self._own: set[int] = set()
        self._shared: set[int] = set()

    def leave_cores(self) -> None:
        """Run on some of the cores from here on, and on the others when this row is alone.

        Planners of other rows go on while a row measures. On the same cores they would hold up its launches, and a step
        whose kernels are short takes as long as they do.
        """
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) >= 3 * OWN_CORES:
            self._own, self._shared = set(cores[:OWN_CORES]), set(cores[OWN_CORES:])
            _run_on(self._shared)

    def say(self, word: str, **facts: Any) -> None:
        """Send a message to the scheduler, as one line of JSON."""
        self._says.write(MARK + json.dumps({"say": word, **facts}) + "\n")
        self._says.flush()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the GPU within the block: no other row uses it; they may compile."""
        if not self._depth:
            self._ask("alone")
            if self._shared:
                _run_on(self._own)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                if self._shared:
                    _run_on(self._shared)
                self.say("done")

    def still(self) -> None:
        """Stop all others as long as this row is alone: its launches wait for nobody's compiler."""
        self._ask("still")

    def _ask(self, word: str) -> None:
        self.say(word)
        start = time.perf_counter()
        self._hears.readline()
        self.waited_s += time.perf_counter() - start

    @contextlib.contextmanager
    def off_the_gpu(self) -> Iterator[None]:
        """Go on within the block while others measure: this row needs nothing of theirs, and its clock runs anyway."""
        self.say("apart")
        try:
            yield
        finally:
            self.say("back")


def _run_on(cores: set[int]) -> None:
    """Bind all threads of this process, and what it starts later, to some cores."""
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # it has ended since
            os.sched_setaffinity(int(thread), cores)


class Turn:
    """Turn of a row: alone from :meth:`take` on, all others stopped from :meth:`still` on, until :meth:`end`."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._held = contextlib.ExitStack()
        self._is_held = False

    def take(self) -> None:
        """Be alone until the end of the turn."""
        if not self._is_held:
            self._is_held = True
            self._held.enter_context(self._link.alone())

    def still(self) -> None:
        """Be alone while all others stand still."""
        self.take()
        self._link.still()

    def end(self) -> None:
        """End the turn: others go on, and get the memory that PyTorch keeps for later."""
        if self._is_held and torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        self._is_held = False
        self._held.close()


def first_runs_alone(turn: Turn) -> None:
    """Patch PyTorch so that this row compiles next to others, and is alone from the first run of compiled code.

    In it variants of kernels are tried. In a fit the others stand still once it has warmed up, and the turn ends when
    the trial is measured.
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
        def still() -> None:
            warmed_up()
            turn.still()

        try:
            return run_trial(*arguments, warmed_up=still, **options)
        finally:
            turn.end()

    def looked(*arguments: Any) -> Any:
        try:
            return look(*arguments)
        finally:
            turn.end()

    CompiledFxGraph.__call__ = runs
    trial_runs.run_trial, trial_runs.TrialRuns.alone = tried, looked
