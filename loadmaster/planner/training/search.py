"""Better mixes, step by step: one layer's point, one group's way or the places of two are changed, with what has to
change for that to fit, or an update is put off; and what is better is kept.

A mix is judged by positions of its moves and the step that these make. Steps a little longer than the last one are gone
on from, since the way to a shorter one may lead over them [Dueck90, threshold accepting].
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from loadmaster.models.training.checker import check
from loadmaster.models.training.plan import Schedule
from loadmaster.models.training.problem import Group, TrainingProblem
from loadmaster.models.training.replay import StuckError, replay
from loadmaster.models.training.ways import Way, ways
from loadmaster.planner.training.baselines import Mix
from loadmaster.planner.training.fitting import MixFitter
from loadmaster.planner.training.positions import positions
from loadmaster.planner.training.windows import Ground
from loadmaster.planner.training.work import Work

# A step that is so much longer is still gone on from, at the beginning of a search and at its end.
_LONGER = (1e-2, 5e-4)
# Kinds of changes, by how often they are tried: (ways changed, points changed), or the places of two are exchanged.
_CHANGES = ((1, 0), (0, 1), (1, 1), (1, 2), (2, 0), (0, 0), (0, 0))
# Changes drawn to find one that may fit.
_DRAWN = 16
# Of changes, so many put an update off.
_DELAYS_CHANGED = 0.2
# Of exchanges, so many are of ways, the others of points.
_WAYS_EXCHANGED = 0.7
_CLOSE_US = 1e-6
# Of a problem with no more mixes than this, all are tried.
_MOST_MIXES = 600
# Changes at random that lead away from a plan which no round makes better.
_KICKED = 3


@dataclass(frozen=True)
class Found:
    """A mix, its moves, and the time of the step that they make."""

    mix: Mix
    schedule: Schedule
    step_us: float


class Search:
    """Looks for better mixes of one problem under one budget."""

    def __init__(self, problem: TrainingProblem, budget_bytes: int, seed: int) -> None:
        self.problem, self.budget_bytes = problem, budget_bytes
        self.ground = Ground(problem)
        self.ways = [ways(group, has_disk=problem.disk is not None) for group in problem.groups]
        self.work = Work(self.ground, self.ways)
        self._fitter = MixFitter(self.ground, self.work, self.ways, budget_bytes)
        self._like_layers = [layer.layer_class for layer in problem.layers]
        kinds: dict[Group, int] = {}
        alike = [replace(group, name="", layers=(0,) * len(group.layers)) for group in problem.groups]
        self._like_groups = [kinds.setdefault(group, len(kinds)) for group in alike]
        self._random = random.Random(seed)

    def step_us(self, mix: Mix) -> float | None:
        """Return the step that moves of a mix make; None if none were found that fit."""
        found = self.evaluate(mix)
        return None if found is None else found.step_us

    def evaluate(self, mix: Mix, most_us: float = math.inf) -> Found | None:
        """Find positions of a mix and the step that they make; None if they do not fit, or make a step that plainly
        takes longer than ``most_us``."""
        if self.work.least_us(mix) > most_us or not self._fitter.may_fit(mix):
            return None
        chosen = self._chosen(mix)
        schedule = positions(
            self.problem,
            mix.points,
            chosen,
            self.budget_bytes,
            ground=self.ground,
            most_us=most_us,
            delays=mix.delays,
        )
        if schedule is None:
            return None
        try:
            timeline = replay(self.problem, schedule, self.ground.phases)
        except StuckError:
            return None
        return Found(mix, schedule, timeline.step_us)

    def timed(self, mix: Mix, schedule: Schedule) -> Found | None:
        """Take a schedule of a mix as it is; None if it does not fit."""
        verdict = check(self.problem, schedule, self.budget_bytes)
        return Found(mix, schedule, verdict.objective) if verdict.ok else None

    def _chosen(self, mix: Mix) -> list[Way]:
        return [of[n] for of, n in zip(self.ways, mix.ways, strict=True)]

    def fitted(self, mix: Mix) -> Mix | None:
        """Change a mix until it fits; None if that does not come to an end."""
        return self._fitter.fitted(mix)

    def kicked(self, found: Found) -> Found:
        """Change a plan at random in some places, and make it fit; return the plan itself where that fails."""
        mix = found.mix
        for _ in range(_KICKED):
            mix = self._one_changed(mix)
        fitted = self.fitted(mix)
        return found if fitted is None else self.evaluate(fitted) or found

    def _one_changed(self, mix: Mix) -> Mix:
        """Change a point or a way at random."""
        points, chosen = list(mix.points), list(mix.ways)
        if self._random.random() < 0.5:
            self._change_point(points)
        else:
            self._change_way(chosen)
        return mix._replace(points=tuple(points), ways=tuple(chosen))

    def _change_point(self, points: list[int]) -> None:
        layer = self._random.randrange(len(points))
        points[layer] = self._random.randrange(len(self.problem.points(layer)))

    def _change_way(self, chosen: list[int]) -> None:
        g = self._random.randrange(len(chosen))
        chosen[g] = self._random.randrange(len(self.ways[g]))

    def spared(self, found: Found) -> Found:
        """Leave states on the host that a plan has in files for nothing: what it writes there wears the disk."""
        for g, number in enumerate(found.mix.ways):
            way = self.ways[g][number]
            if way.state == "disk":
                on_host = next(n for n, other in enumerate(self.ways[g]) if replace(way, state="host").is_of(other))
                mix = found.mix._replace(ways=(*found.mix.ways[:g], on_host, *found.mix.ways[g + 1 :]))
                tried = self.evaluate(mix, most_us=found.step_us)
                if tried is not None and tried.step_us <= found.step_us:
                    found = tried
        return found

    def every(self) -> Iterator[Mix] | None:
        """List all mixes of a small problem; None where there are too many."""
        points = [range(len(self.problem.points(layer))) for layer in range(len(self.problem.layers))]
        chosen = [range(len(of)) for of in self.ways]
        if sum(math.log(len(of)) for of in (*points, *chosen)) > math.log(_MOST_MIXES):
            return None
        return itertools.starmap(Mix, itertools.product(itertools.product(*points), itertools.product(*chosen)))

    def improve(self, found: Found, tries: int, over: Callable[[], bool], told: Callable[[Found], None]) -> Found:
        """Change a mix until it is over or so many changes were tried; return the best found. ``told`` is called with
        each that is better than all before."""
        best = here = found
        for n in range(tries):
            if over():
                break
            mix = self._neighbour(here.mix)
            if mix == here.mix:
                continue
            longer = _LONGER[0] * (_LONGER[1] / _LONGER[0]) ** (n / tries)
            tried = self.evaluate(mix, most_us=best.step_us * (1 + longer))
            if tried is None:
                continue
            if tried.step_us <= best.step_us * (1 + longer):
                here = tried
            if tried.step_us < best.step_us - _CLOSE_US:
                best = tried
                told(best)
        return best

    def _neighbour(self, mix: Mix) -> Mix:
        """Change a mix at random: put an update off, or change what still may fit; where no change that was drawn
        does, make one with all that has to change for it."""
        if self._random.random() < _DELAYS_CHANGED:
            return self._delayed(mix)
        drawn = (self._changed(mix) for _ in range(_DRAWN))
        found = next(filter(self._fitter.may_fit, drawn), None)
        return found or self._fitter.repaired(self._changed(mix)) or mix

    def _changed(self, mix: Mix) -> Mix:
        points, chosen = list(mix.points), list(mix.ways)
        ways_changed, points_changed = self._random.choice(_CHANGES)
        if not ways_changed + points_changed:
            if self._random.random() < _WAYS_EXCHANGED:
                self._exchange(chosen, self._like_groups)
            else:
                self._exchange(points, self._like_layers)
        for _ in range(ways_changed):
            self._change_way(chosen)
        for _ in range(points_changed):
            self._change_point(points)
        return mix._replace(points=tuple(points), ways=tuple(chosen))

    def _delayed(self, mix: Mix) -> Mix:
        """Put an update that needs bytes from the host off to another phase, or to none."""
        moved = [g for g, (of, n) in enumerate(zip(self.ways, mix.ways, strict=True)) if of[n].has_stay]
        if not moved:
            return mix
        g, delays = self._random.choice(moved), list(mix.delays or (0,) * len(mix.ways))
        most = self.ground.next_use[g] - 1 - self.ground.update_from[g]
        delays[g] = 0 if delays[g] and self._random.random() < 0.5 else self._random.randint(0, most)
        return mix._replace(delays=tuple(delays))

    def _exchange(self, values: list[int], likeness: Sequence[int]) -> None:
        """Exchange the values of two that are alike, where they differ."""
        a = self._random.randrange(len(values))
        others = [b for b, like in enumerate(likeness) if like == likeness[a] and values[b] != values[a]]
        if others:
            b = self._random.choice(others)
            values[a], values[b] = values[b], values[a]
