"""Dropping what a schedule does for nothing: computes nobody reads, results kept for nobody."""

from __future__ import annotations

from dataclasses import replace

from loadmaster.models.memory.plan import Compute, Schedule, Stage
from loadmaster.models.memory.problem import MemoryProblem


def without_dead_code(problem: MemoryProblem, schedule: Schedule) -> Schedule:
    """Drop needless recomputation, encoded results and keeps from a schedule: it gets neither dearer nor larger.

    A compute stays if its result is not stored already and is read later, or if an encoded result that stays needs it
    as its parent; also if the backward operator reads the result and the stage does not keep it, as keeping it could
    take more room. A keep stays if a later stage needs it, or if the stage's backward operator reads the result and the
    stage does not compute it, or counts it among the live inputs of a compute: the accounting charges it twice if it is
    not kept. Schedules that offload come back as they are, because every compute dropped would move the copies in time.
    """
    if schedule.offload or any(stage.fetches for stage in schedule.stages):
        return schedule
    stages = list(schedule.stages)
    needed_next: set[int] = set()
    for t in reversed(range(len(stages))):
        stored = frozenset(stages[t - 1].keep) if t > 0 else frozenset()
        stages[t], needed_next = _stage_without_dead_code(problem, t, stages[t], stored, needed_next)
    return replace(schedule, stages=tuple(stages))


def _stage_without_dead_code(
    problem: MemoryProblem, t: int, stage: Stage, stored: frozenset[int], needed_next: set[int]
) -> tuple[Stage, set[int]]:
    """One stage, given what it finds stored and what later ones need of it; returns it and what it needs stored."""
    reads: set[int] = set()
    if t > 0 and stage.implementation is not None:
        reads = set(problem.backward[t - 1].implementations[stage.implementation].needs)
    needed = reads | needed_next.intersection(stage.keep)
    parents: set[int] = set()
    computes: list[Compute] = []
    for c in reversed(stage.computes):
        operator = problem.forward[c.forward]
        compulsory = t == 0 and operator.encodes is None
        there = c.forward in stored and not (c.forward in reads and c.forward not in stage.keep)
        read = c.forward in needed and not there
        if not (compulsory or read or c.forward in parents):
            continue
        computes.append(c)
        needed.discard(c.forward)
        needed.update(operator.inputs)
        if operator.encodes is not None:
            parents.add(operator.encodes)
    computed = {c.forward for c in computes}
    live = {i for c in computes for i in problem.forward[c.forward].live_inputs}
    kept_for_reading = {i for i in reads if i in live or i not in computed}
    keep = tuple(i for i in stage.keep if i in needed_next or i in kept_for_reading)
    return replace(stage, computes=tuple(reversed(computes)), keep=keep), needed
