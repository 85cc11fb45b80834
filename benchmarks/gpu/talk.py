"""How a row's process speaks with the scheduler, and gets the machine to itself."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

MARK = "@@ "
# Cores that only a row that is alone runs on, and it on no others, where there are twice as many others.
OWN_CORES = 4


class Link:
    """The line to the scheduler, and the right to be alone that is asked for over it.

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
        """Run on some of the cores from now on, and on the others when this row is alone.

        Planners of other rows go on while a row measures. On the same cores they would hold up its launches, and a step
        whose kernels are short takes as long as they do.
        """
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) >= 3 * OWN_CORES:
            self._own, self._shared = set(cores[:OWN_CORES]), set(cores[OWN_CORES:])
            _run_on(self._shared)

    def say(self, word: str, **facts: Any) -> None:
        """Tell the scheduler."""
        self._says.write(MARK + json.dumps({"say": word, **facts}) + "\n")
        self._says.flush()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Inside, no other row runs."""
        if not self._depth:
            self.say("alone")
            start = time.perf_counter()
            self._hears.readline()
            self.waited_s += time.perf_counter() - start
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

    @contextlib.contextmanager
    def off_the_gpu(self) -> Iterator[None]:
        """Inside, this row needs nothing that others measure, and goes on while they do: its clock runs anyway."""
        self.say("apart")
        try:
            yield
        finally:
            self.say("back")


def _run_on(cores: set[int]) -> None:
    """All threads of this process, and what it starts from now on."""
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # it has ended since
            os.sched_setaffinity(int(thread), cores)


def run_trials_alone(link: Link) -> None:
    """From now on, compile fitted steps beside other rows, and be alone from their first run, which tries variants of
    kernels, until they are measured."""
    import torch._functorch.config as functorch_config

    from loadmaster.executor.memory.fit import fit
    from loadmaster.executor.memory.run import backends

    functorch_config.force_non_lazy_backward_lowering = True  # before the first run
    turn = contextlib.ExitStack()
    compile_ = backends.COMPILERS["inductor"]

    def waiting(module: Any, inputs: Any) -> Callable[[list[Any]], Any]:
        compiled = compile_(module, inputs)
        has_run = False

        def run(arguments: list[Any]) -> Any:
            nonlocal has_run
            if not has_run:
                has_run = True
                turn.enter_context(link.alone())
            return compiled(arguments)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    backends.COMPILERS["inductor"] = waiting
    original, record = fit.trial, fit.record

    def trial(*arguments: Any, **options: Any) -> Any:
        with turn:
            return original(*arguments, **options)

    def recorded(*arguments: Any, **options: Any) -> Any:
        with link.alone():
            return record(*arguments, **options)

    fit.trial, fit.record = trial, recorded
