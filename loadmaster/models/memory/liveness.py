"""Liveness: where in the stage-by-operator grid a result can still be of use. No optimal schedule fills the rest."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from loadmaster.models.memory.choices import backward_choices
from loadmaster.models.memory.problem import MemoryProblem

BoolArray = NDArray[np.bool_]


class Liveness:
    """Cells [stages, V] where computing result i in stage t, or keeping it from t to t + 1, can help. In stage 0
    ``compute`` says something about encoded results only: the others always run there."""

    def __init__(
        self,
        problem: MemoryProblem,
        *,
        may_recompute: BoolArray | None = None,
        needs: Sequence[Collection[int]] | None = None,
    ) -> None:
        """Find the cells; ``may_recompute`` [stages, V] leaves out recomputations (row 0 is not read). ``needs`` [K]:
        what each backward operator may read; None: what any of its undominated implementations needs."""
        stages, count = problem.stage_count, len(problem.forward)
        if needs is None:
            needs = [{i for c in backward_choices(problem, k) for i in c.needs} for k in range(1, stages)]
        needed = np.zeros((stages, count), dtype=bool)
        for k, read in enumerate(needs, start=1):
            needed[k, list(read)] = True
        allowed = np.ones((stages, count), dtype=bool) if may_recompute is None else may_recompute.copy()
        allowed[0] = False
        allowed[:, [not f.recomputable for f in problem.forward]] = False
        for f in problem.forward:
            if f.encodes is not None:
                allowed[:, f.id] &= allowed[:, f.encodes]
        stage = np.arange(stages)
        self.compute = np.zeros((stages, count), dtype=bool)
        self.keep = np.zeros((stages, count), dtype=bool)
        # The last stage that can read i: readers and encoded results have higher ids, so they are known already.
        last_run = np.zeros(count, dtype=np.int64)
        for i in reversed(range(count)):
            last_read = max([0, *np.flatnonzero(needed[:, i]), *(last_run[j] for j in problem.consumers[i])])
            last_use = max([last_read, *(last_run[e] for e in problem.encodings[i])])
            runs = allowed[:, i] & (stage <= last_use)
            self.compute[:, i] = runs
            first_readers = [
                j for j in problem.consumers[i] if problem.forward[j].encodes is None or self.compute[0, j]
            ]
            self.compute[0, i] = last_read > 0 or bool(first_readers)
            last_run[i] = max(np.flatnonzero(runs), default=0)
            # The stage that reads it for its backward operator keeps it too, unless it computes it: see
            # :mod:`loadmaster.models.memory.dead_code`.
            self.keep[:, i] = (stage + 1 <= last_read) | needed[:, i]


def fits_alone(problem: MemoryProblem, budget_bytes: int) -> BoolArray:
    """Mask of the recomputations that fit the budget with nothing else kept, [stages, V]. No plan holds others.

    Row 0 says it of the forward pass. Resident are at least the stage's gradients and fixed bytes, the live inputs, the
    result, and the least workspace of any implementation, in place or not. An encoded result fits where its parent
    does.
    """
    least = np.zeros((2, len(problem.forward)), dtype=np.int64)
    for f in problem.forward:
        saved = 0 if f.in_place is None else min(0, f.in_place.workspace_delta_bytes)
        for row, choices in enumerate((f.implementations, f.recompute_implementations)):
            least[row, f.id] = min(c.workspace_bytes for c in choices) + saved + f.output_bytes + f.live_bytes
    gradients = np.array([problem.gradient_bytes(t) for t in range(problem.stage_count)])
    recompute = np.minimum(np.arange(problem.stage_count), 1)
    fits = np.asarray(gradients[:, None] + least[recompute] <= budget_bytes)
    for f in problem.forward:
        if f.encodes is not None:
            fits[:, f.id] &= fits[:, f.encodes]
    return fits
