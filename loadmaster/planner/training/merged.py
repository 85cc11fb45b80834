"""A coarser problem, in which all groups of a layer are one: its search is quicker, and where it ends, that of the
problem itself begins."""

from __future__ import annotations

from dataclasses import dataclass, replace

from loadmaster.models.training.plan import Schedule
from loadmaster.models.training.problem import Group, TrainingProblem
from loadmaster.planner.training.baselines import Mix

_SIZES = ("weight_bytes", "copy_bytes", "gradient_bytes", "copy_gradient_bytes", "state_bytes")


@dataclass(frozen=True)
class Merged:
    """A problem whose groups are those of another one together. ``merged_into``: for each of those, the number of the
    group that has it."""

    problem: TrainingProblem
    merged_into: tuple[int, ...]

    def unmerged(self, mix: Mix) -> Mix:
        """Return a mix for the other problem: all groups that were merged are treated alike."""
        delays = tuple(mix.delays[n] for n in self.merged_into) if mix.delays else ()
        return Mix(mix.points, tuple(mix.ways[n] for n in self.merged_into), delays)

    def all_together(self, schedule: Schedule) -> Schedule:
        """Return a schedule for the other problem: all groups that were merged move and are updated together."""
        return replace(schedule, groups=tuple(schedule.groups[n] for n in self.merged_into))


def merged(problem: TrainingProblem) -> Merged | None:
    """Merge the groups of each layer that may be treated alike; None where no layer has two of them."""
    groups: dict[object, list[Group]] = {}
    for number, group in enumerate(problem.groups):
        alone = number if len(group.layers) > 1 else None
        kind = group.is_trained, group.host_update_us is None, group.state_bytes > 0
        groups.setdefault((group.layers, kind, alone), []).append(group)
    if len(groups) == len(problem.groups):
        return None
    into = {id(group): n for n, members in enumerate(groups.values()) for group in members}
    coarser = tuple(_sum(members) for members in groups.values())
    return Merged(replace(problem, groups=coarser), tuple(into[id(group)] for group in problem.groups))


def _sum(members: list[Group]) -> Group:
    first = members[0]
    sizes = {name: sum(getattr(group, name) for group in members) for name in _SIZES}
    host_us = [group.host_update_us for group in members if group.host_update_us is not None]
    update_us = sum(group.update_us for group in members)
    return replace(first, **sizes, update_us=update_us, host_update_us=sum(host_us) if host_us else None)
