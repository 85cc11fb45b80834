"""Runs of like layers, and the slots that they cut a step into.

Layers of one run differ in nothing but their place: the same class, and groups of the same bytes and times. A program
over runs counts how many of its layers do what. Slots are the forward and the backward passes of each run in each
micro-batch, in the order of the step; with R runs and m micro-batches, slots 0 .. 2Rm - 1. Slots of the next step count
on.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from loadmaster.models.training.phases import Phases
from loadmaster.models.training.problem import Group, TrainingProblem

__all__ = ["GroupRun", "Run", "Runs", "Window", "runs"]


@dataclass(frozen=True)
class Run:
    """Consecutive layers that are alike. ``groups`` are numbers of the group runs that they alone use."""

    layers: range
    groups: tuple[int, ...]


@dataclass(frozen=True)
class GroupRun:
    """Groups that are alike: the same number of them in each layer of one run, in the order of layers; or one group
    that several layers use."""

    groups: tuple[int, ...]
    layers: tuple[int, ...]

    @property
    def is_shared(self) -> bool:
        """True for one group that several layers use."""
        return len(self.groups) < len(self.layers)

    @property
    def each(self) -> int:
        """Number of groups in each layer."""
        return 1 if self.is_shared else len(self.groups) // len(self.layers)


@dataclass(frozen=True)
class Window:
    """The first and the last of some phases."""

    first: int
    last: int

    def later(self, count: int) -> Window:
        """Return the window that many phases later."""
        return Window(self.first + count, self.last + count)


@dataclass(frozen=True)
class Runs:
    """The runs of a problem, ``groups`` those of its groups, and the slots of its step."""

    problem: TrainingProblem
    layers: tuple[Run, ...]
    groups: tuple[GroupRun, ...]

    @cached_property
    def phases(self) -> Phases:
        """The phases that slots are made of."""
        return Phases(self.problem)

    @property
    def slots(self) -> int:
        """Number of slots of a step."""
        return 2 * len(self.layers) * self.problem.micro_batches

    @cached_property
    def _run_of(self) -> tuple[int, ...]:
        return tuple(a for a, run in enumerate(self.layers) for _ in run.layers)

    def run_of(self, layer: int) -> int:
        """Return the run that a layer is in."""
        return self._run_of[layer]

    def run(self, slot: int) -> int:
        """Return the run of a slot, of this or a later step."""
        at = slot % (2 * len(self.layers))
        return at if at < len(self.layers) else 2 * len(self.layers) - 1 - at

    def is_forward(self, slot: int) -> bool:
        """Return whether a slot is a forward pass."""
        return slot % (2 * len(self.layers)) < len(self.layers)

    def slot(self, phase: int) -> int:
        """Return the slot that a phase lies in."""
        passes = phase // (2 * self.phases.layers)
        a = self._run_of[self.phases.layer(phase)]
        at = a if self.phases.is_forward(phase) else 2 * len(self.layers) - 1 - a
        return passes * 2 * len(self.layers) + at

    def last_phase(self, slot: int) -> int:
        """Return the last phase of a slot."""
        passes = slot // (2 * len(self.layers))
        layers = self.layers[self.run(slot)].layers
        at = layers[-1] if self.is_forward(slot) else 2 * self.phases.layers - 1 - layers[0]
        return passes * 2 * self.phases.layers + at

    def is_single(self, slot: int) -> bool:
        """Return whether a slot has one phase alone."""
        return len(self.layers[self.run(slot)].layers) == 1

    def alike(self, r: int) -> Group:
        """Return one group of a group run: the others have the same bytes and times."""
        return self.problem.groups[self.groups[r].groups[0]]

    def uses(self, r: int) -> list[Window]:
        """List the uses of a group run in a step, ascending: of each the first and the last phase of any member."""
        of = self.phases.uses
        members = [of[g] for g in self.groups[r].groups]
        return [Window(min(phases), max(phases)) for phases in zip(*members, strict=True)]

    def first_gradients(self, r: int) -> Window:
        """Return the phases that make the first part of a gradient."""
        return self._over(r, self.phases.first_gradient)

    def last_gradients(self, r: int) -> Window:
        """Return the phases after which a gradient is complete."""
        return self._over(r, self.phases.last_gradient)

    def updates_from(self, r: int) -> Window:
        """Return the phases after which an update may run."""
        return self._over(r, self.phases.update_from)

    def next_uses(self, r: int) -> Window:
        """Return the first phases of the next step that use the parameters."""
        return self._over(r, self.phases.next_use)

    def _over(self, r: int, phase: Callable[[Group], int]) -> Window:
        found = [phase(self.problem.groups[g]) for g in self.groups[r].groups]
        return Window(min(found), max(found))


def runs(problem: TrainingProblem, most: int | None) -> Runs:
    """Cut a problem's layers into runs: each stretch of consecutive layers that are alike into at most ``most`` of
    about the same length; None: every layer is a run of its own."""
    own: list[dict[Group, list[int]]] = [defaultdict(list) for _ in problem.layers]
    shared = [g for g, group in enumerate(problem.groups) if len(group.layers) > 1]
    for g, group in enumerate(problem.groups):
        if len(group.layers) == 1:
            own[group.layers[0]][_likeness(group)].append(g)
    found: list[Run] = []
    groups: list[GroupRun] = []
    for stretch in _stretches(problem, own):
        for layers in _cut(stretch, len(stretch) if most is None else most):
            first = len(groups)
            for likeness in own[layers[0]]:
                members = tuple(g for layer in layers for g in own[layer][likeness])
                groups.append(GroupRun(members, tuple(layers)))
            found.append(Run(layers, tuple(range(first, len(groups)))))
    groups += [GroupRun((g,), problem.groups[g].layers) for g in shared]
    return Runs(problem, tuple(found), tuple(groups))


def _likeness(group: Group) -> Group:
    return replace(group, name="", layers=(0,))


def _stretches(problem: TrainingProblem, own: list[dict[Group, list[int]]]) -> Iterator[range]:
    def key(layer: int) -> tuple[int, dict[Group, int]]:
        return problem.layers[layer].layer_class, {likeness: len(found) for likeness, found in own[layer].items()}

    start = 0
    for end in range(1, len(own) + 1):
        if end == len(own) or key(end) != key(start):
            yield range(start, end)
            start = end


def _cut(layers: range, most: int) -> Iterator[range]:
    count = min(most, len(layers))
    cuts = [len(layers) * k // count for k in range(count + 1)]
    for start, end in itertools.pairwise(cuts):
        yield layers[start:end]
