"""A simulator of moves over many steps, by what a link carries and what a device holds: it knows nothing of cycles."""

from __future__ import annotations

from collections import defaultdict

from loadmaster.models.placement.plan import Absence, Moves
from loadmaster.models.placement.problem import PlacementProblem

# Divisible by all small numbers: where steps repeat in turns, by how many there are of these.
WINDOW = 2520


def mean_step_us(problem: PlacementProblem, moves: Moves, *, steps: int = 2 * WINDOW) -> float:
    """How long a step takes on average, over the last :data:`WINDOW` of so many, for whoever takes longest: operators
    or a link."""
    count = len(problem.operators)
    sizes = [b.size_bytes for b in problem.blocks]
    links: dict[tuple[str, int], float] = defaultdict(float)
    stored_at: dict[tuple[int, int], float] = {}
    loaded_at: dict[int, float] = {}
    clock = 0.0
    passed: list[list[float]] = []
    for position in range(steps * count):
        i = position % count
        for store in moves.stores:
            if store.at == i:
                link = ("to", store.tier)
                links[link] = max(clock, links[link]) + problem.tiers[store.tier].store_us(sizes[store.block])
                stored_at[store.block, store.tier] = links[link]
        for absence in moves.absences:
            if absence.gone_at == i:
                clock = max(clock, stored_at.get((absence.block, absence.tier), 0.0))
        for absence in moves.absences:
            if _loads_at(absence, position, count):
                link = ("from", absence.tier)
                links[link] = max(clock, links[link]) + problem.tiers[absence.tier].load_us(sizes[absence.block])
                loaded_at[absence.block] = links[link]
        for block in problem.operators[i].reads:
            clock = max(clock, loaded_at.get(block, 0.0))
        clock += problem.operators[i].time_us
        if i == count - 1:
            passed.append([clock, *(links[d, t] for d in ("to", "from") for t in range(len(problem.tiers)))])
    return max(late - early for early, late in zip(passed[-1 - WINDOW], passed[-1], strict=True)) / WINDOW


def _loads_at(absence: Absence, position: int, count: int) -> bool:
    return position >= absence.load_at and (position - absence.load_at) % count == 0
