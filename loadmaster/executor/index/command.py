"""The process behind ``loadmaster tune``: traces run here, and are planned for by the process that started this one.

See :mod:`loadmaster.executor.command`. The task is ``{"traces": [paths] or {distributions}, "problem": document or
null, "most_operations": n or null, "seconds": s}``. Where there is no problem, ``{"shards": [[name, features], ...]}``
asks for the one with these shards. ``{"ran": {...}}`` tells of a run, ``{"tuned": {...}}`` of the end.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from loadmaster.errors import InputError
from loadmaster.executor.command import Parent
from loadmaster.executor.index.tune import Ran, tune
from loadmaster.models.canonical import plain
from loadmaster.models.index.documents import read_problem
from loadmaster.models.index.features import features
from loadmaster.models.index.generators import Distributions, traces_of_files
from loadmaster.models.index.problem import IndexProblem
from loadmaster.models.index.trace import Trace


def run(task: dict[str, Any], parent: Parent) -> None:
    """Tune the index of a task, and tell the parent of every run and of the end. InputError: traces or problem cannot
    be used, or do not go together."""
    given = task["traces"]
    named = list(traces_of_files(given) if isinstance(given, list) else Distributions.of(given).traces())
    if task["problem"] is None:
        answer = parent.ask({"shards": [[name, plain(features(trace))] for name, trace in named]})
        problem, traces = read_problem(answer["problem"]), [trace for _, trace in named]
    else:
        problem = read_problem(task["problem"])
        traces = of_shards(problem, named)

    def tell(ran: Ran) -> None:
        parent.tell({"ran": {"shard": ran.shard, "candidate": ran.candidate}})

    limits = {name: task[name] for name in ("most_operations", "seconds")}
    tuned = tune(problem, traces, parent.plan, **limits, on_run=tell, cancelled=_first_interrupt())
    told = {"problem_sha256": tuned.problem.sha256, "stopped_by": tuned.stopped_by, "rounds": len(tuned.rounds)}
    parent.tell({"tuned": {**told, "ran": len(tuned.ran)}})


def of_shards(problem: IndexProblem, named: Sequence[tuple[str, Trace]]) -> list[Trace]:
    """The trace of every shard: by name where all have the names of shards, else in their order. InputError: they are
    not as many as shards, or one has the name of another shard than the one in its place."""
    by_name = dict(named)
    names = [shard.name for shard in problem.shards]
    if len(by_name) != len(names):
        remedy = f"Give one for each shard: {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}."
        raise InputError("--trace", len(by_name), f"are not as many as the {len(names)} shards", remedy)
    if set(by_name) == set(names):
        return [by_name[name] for name in names]
    for place, name in enumerate(by_name):
        if name in names and names[place] != name:
            problem_ = f"has the name of a shard, and is in the place of {names[place]}"
            raise InputError("--trace", name, problem_, "Give traces in the order of shards, or all with their names.")
    return list(by_name.values())


def _first_interrupt() -> Callable[[], bool]:
    """Handle SIGINT; return a call that says whether it came. The first asks for a plan, a second ends it all."""
    asked = threading.Event()

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    signal.signal(signal.SIGINT, on_interrupt)
    return asked.is_set


def main(_arguments: Sequence[str] = ()) -> int:
    """Run the command; returns its exit status."""
    parent = Parent.of_this_process()
    try:
        run(parent.hear(), parent)
    except MemoryError:
        sys.stderr.write(
            "error: there is not enough memory to run a candidate. Give smaller traces, or fewer shards.\n"
        )
        return 1
    return 0
