"""Members of the portfolio of restrictions: how many slots, and what is considered in each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from loadmaster.models.memory import banded
from loadmaster.models.memory.banded_points import Banded
from loadmaster.models.memory.bands import band, everything, slots_of_stages, with_pairs
from loadmaster.models.memory.groups import groups_by_mass, groups_of
from loadmaster.models.memory.plan import Schedule
from loadmaster.models.memory.problem import MemoryProblem


@dataclass(frozen=True)
class Slots:
    """Member of the portfolio of restrictions: ``count`` slots of equal mass, and the band's ``width`` and ``reach``
    (:func:`loadmaster.models.memory.bands.band`); width None considers everything."""

    count: int
    width: int | None
    reach: int

    def restriction(
        self,
        problem: MemoryProblem,
        incumbent: Schedule | None,
        budget_bytes: int | None,
        *,
        offload: bool,
        to_the_byte: bool,
        out_of_time: Callable[[], bool],
    ) -> Banded:
        """Build the restriction, with the incumbent among its points. No budget: it is minimized. Raises OutOfTimeError
        if the time was too short to write it."""
        starts = set(groups_by_mass(problem, self.count))
        stages = [] if incumbent is None else list(enumerate(incumbent.stages))[1:]
        starts |= {t for t, stage in stages if stage.computes or stage.fetches}
        groups = groups_of(sorted(starts), problem.stage_count)
        slot = slots_of_stages(groups)
        pairs = [(slot[t], c.forward) for t, stage in stages for c in stage.computes]
        allowed = everything(problem, groups) if self.width is None else band(problem, groups, self.width, self.reach)
        return banded.build(
            problem,
            budget_bytes,
            sorted(starts),
            with_pairs(allowed, pairs),
            offload=offload,
            to_the_byte=to_the_byte,
            out_of_time=out_of_time,
        )
