"""Search for a first plan where memory leaves little room: bytes are minimized until the budget holds them.

A restriction is solved whole for a moment, whatever the time a step takes; the next one goes on from that schedule in
its neighbourhood, the slots around the stage that takes most, for the rest is in nobody's way; and so on. Where that
saves nothing, the next neighbourhood is wider. Offload is left out.
"""

from __future__ import annotations

import bisect
import itertools
import math
import sys
from collections.abc import Sequence
from dataclasses import replace

from loadmaster.models.memory.checker import check
from loadmaster.models.memory.completion import complete
from loadmaster.models.units import show_bytes
from loadmaster.planner.memory.large_neighbourhood import NEIGHBOURHOOD_SHARE, outside_fixed
from loadmaster.planner.memory.search import RESTRICTION_GAP, Search
from loadmaster.planner.memory.slots import Slots
from loadmaster.solvers.solution import Progress, SolveOptions

# On each side of the stage that takes most, so many of all slots; after n fruitless solves in a row, n + 1 times that.
HALF_WIDTH = 1 / 6
# A solve that has saved less than this share of the bytes was fruitless.
WORTH_ANOTHER = 1e-3


def find_feasible(search: Search, portfolio: Sequence[Slots], limit_s: float) -> None:
    """Look for any plan at all, in one restriction after another, until none of them brings the bytes down. Solves take
    a share of ``limit_s`` each."""
    fruitless = 0
    for slots in itertools.cycle(portfolio):
        if search.best is not None or search.done() or fruitless == len(portfolio):
            break
        before = _bytes_of(search)
        _solve(search, slots, NEIGHBOURHOOD_SHARE * limit_s, (1 + fruitless) * HALF_WIDTH)
        fruitless = fruitless + 1 if _bytes_of(search) > (1 - WORTH_ANOTHER) * before else 0
    search.say("any plan", "done")


def _bytes_of(search: Search) -> float:
    return math.inf if search.nearest is None else search.nearest[1].peak_bytes


def _solve(search: Search, slots: Slots, limit_s: float, half_width: float) -> None:
    restriction = search.restriction(slots, None, offload=False, to_the_byte=True)
    if restriction is None:
        return
    starts, unit_bytes = [first for first, _ in restriction.groups], restriction.unit_bytes
    program, options = restriction.program, SolveOptions(seed=search.effort.options.seed)
    phase = f"any plan, {len(starts)} slots"
    if search.nearest is not None:
        schedule, verdict = search.nearest
        columns, values = restriction.start(schedule)
        options = replace(options, start_columns=columns, start_values=values)
        stage = max(verdict.events, key=lambda e: e.resident_bytes).stage
        if stage > 0:  # what the forward pass keeps less of may be recomputed anywhere
            half, middle = math.ceil(half_width * len(starts)), bisect.bisect_right(starts, stage) - 1
            first, last = max(0, middle - half), min(len(starts), middle + half + 1)
            program = outside_fixed(restriction, schedule, first, last)
            phase = f"any plan, {last - first} of {len(starts)} slots"
    reached_bytes = math.inf

    def live(progress: Progress) -> None:
        nonlocal reached_bytes
        reached_bytes = math.inf if progress.objective is None else progress.objective * unit_bytes
        shown = "no point yet" if progress.objective is None else show_bytes(math.ceil(reached_bytes))
        search.say(phase, f"{progress.nodes} nodes, {shown}")

    def enough() -> bool:
        return reached_bytes <= search.budget_bytes

    solution = search.solved(program, limit_s, RESTRICTION_GAP, live, enough, options)
    if solution.values is None or solution.objective is None:
        return
    allowed_bytes = max(search.budget_bytes, math.ceil(solution.objective * unit_bytes))
    decisions = restriction.decisions(solution.values)
    schedule = search.built(lambda: complete(search.problem, allowed_bytes, decisions))
    with search.effort.on_clock("check"):
        verdict = check(search.problem, schedule, sys.maxsize)
    if verdict.peak_bytes <= search.budget_bytes:
        search.adopt(schedule, "banded")
    elif verdict.ok and verdict.peak_bytes < _bytes_of(search):
        search.nearest = schedule, verdict
