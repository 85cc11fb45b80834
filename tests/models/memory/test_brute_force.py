"""The oracle of the exact formulation, held against the checker: they judge every stage alike."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.models.memory.checker import _Replay
from loadmaster.models.memory.plan import Schedule, Stage
from tests.models.memory.brute_force import NEVER, Sets, cost_of, runs
from tests.models.memory.instances import random_problem


@pytest.mark.parametrize("seed", range(12))
def test_stages_are_judged_as_by_the_checker(seed: int) -> None:
    """Any stage: what it runs, finds stored and keeps is drawn at random."""
    problem = random_problem(
        seed, operators=4, skips=0.5, in_place=0.7, encodings=0.4, once_only=0.1, roomy_in_place=0.3
    )
    sets, draw = Sets(problem), np.random.default_rng(seed)
    possible = 0
    for _ in range(60):
        t = int(draw.integers(problem.stage_count))
        choices = list(runs(problem, t))
        computes = choices[draw.integers(len(choices))]
        way = int(draw.integers(len(problem.backward[t - 1].implementations))) if t else None
        stored, keep = (int(draw.integers(sets.count)) for _ in range(2)) if t else (0, int(draw.integers(sets.count)))
        kept = tuple(i for i, bit in sets.bits.items() if keep & bit)
        replay = _Replay(problem, Schedule(()), NEVER)
        replay._stage(t, Stage(computes, way, kept), {i for i, bit in sets.bits.items() if stored & bit})
        peak = int(sets.peak_bytes(t, computes, way)[stored, keep])
        assert (peak == NEVER) == bool(replay.violations)
        if peak < NEVER:
            possible += 1
            assert peak == replay.peak_bytes
            assert cost_of(problem, t, computes, way) == pytest.approx(replay.objective)
    assert possible
