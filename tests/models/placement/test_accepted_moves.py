"""What the checker accepts can be run: random moves, executed operator by operator with the contents of every block."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.models.placement.accesses import Accesses
from loadmaster.models.placement.checker import check
from loadmaster.models.placement.plan import Absence, Moves, Store
from loadmaster.models.placement.problem import PlacementProblem
from tests.models.placement.instances import all_moves, random_problem


def executed(problem: PlacementProblem, moves: Moves, budget_bytes: int, steps: int = 4) -> None:
    """Assert that each operator of some steps finds what it reads, within the budget.

    The first step starts with everything on the device; what a step before it would have taken away is there too.
    Versions count the writes of a block.
    """
    count = len(problem.operators)
    sizes = [b.size_bytes for b in problem.blocks]
    uses = Accesses(problem).uses
    latest = [0] * len(sizes)
    # Contents that the first operator to use them writes over are dead from the start, and not there.
    device = {b: 0 for b in range(len(sizes)) if uses[b] and uses[b][0][1]}
    written = {b for b, rows in enumerate(uses) if any(writes for _, _, writes in rows)}
    tier: dict[tuple[int, int], int] = {
        (b, t): 0 for b in range(len(sizes)) if b not in written for t in range(len(problem.tiers))
    }
    loads = [(step * count + a.load_at, a) for step in range(steps) for a in moves.absences]
    for position in range(steps * count):
        i = position % count
        for store in moves.stores:
            # In the first step what is stored may be from before it.
            if store.at == i and (position >= count or store.block in device):
                assert device[store.block] == latest[store.block]
                tier[store.block, store.tier] = latest[store.block]
        for absence in moves.absences:
            if absence.gone_at == i and (position >= count or absence.block in device):
                if position >= count:
                    assert tier[absence.block, absence.tier] == latest[absence.block]
                else:
                    tier.setdefault((absence.block, absence.tier), latest[absence.block])
                del device[absence.block]
        for at, absence in loads:
            if at == position:
                assert absence.block not in device
                device[absence.block] = tier[absence.block, absence.tier]
        operator = problem.operators[i]
        for b in operator.blocks:
            if b in operator.reads:
                assert device[b] == latest[b]
            device.setdefault(b, -1)
        if position >= count:
            assert sum(sizes[b] for b in device) + operator.workspace_bytes <= budget_bytes
        for b in operator.writes:
            latest[b] += 1
            device[b] = latest[b]
        for b in operator.blocks:
            at = [j for j, _, _ in uses[b]].index(i)
            if not uses[b][(at + 1) % len(uses[b])][1]:
                del device[b]


def shaken(moves: Moves, rng: random.Random, count: int) -> Moves:
    """Moves with some positions changed, and some left out."""

    def near(position: int) -> int:
        return max(0, position + rng.choice((0, 0, 0, 0, -1, 1)))

    stores = [replace(s, at=near(s.at) % count) for s in moves.stores if rng.random() < 0.95]
    absences = [
        replace(a, gone_at=near(a.gone_at) % count, load_at=near(a.load_at))
        for a in moves.absences
        if rng.random() < 0.95
    ]
    return Moves(tuple(stores), tuple(absences))


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6))
def test_what_is_accepted_can_be_run(seed: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(seed, operators=rng.randint(3, 5), blocks=3)
    count = len(problem.operators)
    some = list(itertools.islice(all_moves(problem), rng.randrange(400), 400))
    for moves in rng.sample(some, min(15, len(some))):
        for tried in (moves, shaken(moves, rng, count), shaken(moves, rng, count)):
            found = check(problem, tried, 1 << 40)
            if found.ok:
                executed(problem, tried, found.peak_bytes)


def test_the_execution_sees_what_is_wrong() -> None:
    problem = random_problem(3)
    gap = next(g for g in Accesses(problem).gaps if g.has_room and g.written is not None and g.before < 5)
    away = Absence(gap.block, 0, gap.after + 1, gap.before)
    for stores in ((), (Store(gap.block, 0, gap.before),)):
        try:
            executed(problem, Moves(stores, (away,)), 1 << 40)
        except (AssertionError, KeyError):
            continue
        raise AssertionError("went through")
