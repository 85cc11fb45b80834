"""Calendar of a training step: its phases, which layers run in them, and when the parameters of a group are used.

With L layers, phases 0 .. L-1 are the forward passes of one micro-batch, phases L .. 2L-1 its backward passes in
reverse order; the next micro-batch follows. P = 2 L m phases make a step of m micro-batches.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import cached_property

from loadmaster.models.training.problem import Group, TrainingProblem


class Phases:
    """The phases of a problem's step."""

    def __init__(self, problem: TrainingProblem) -> None:
        self.problem = problem
        self.layers = len(problem.layers)

    def __len__(self) -> int:
        return 2 * self.layers * self.problem.micro_batches

    def layer(self, phase: int) -> int:
        """Return the layer that runs in a phase, of this or a later step."""
        at = phase % (2 * self.layers)
        return at if at < self.layers else 2 * self.layers - 1 - at

    def is_forward(self, phase: int) -> bool:
        """Return whether a phase is a forward pass."""
        return phase % (2 * self.layers) < self.layers

    def words(self, phase: int) -> str:
        """Name a phase for a person."""
        return f"{'forward' if self.is_forward(phase) else 'backward'} of {self.problem.layers[self.layer(phase)].name}"

    @cached_property
    def uses(self) -> tuple[tuple[int, ...], ...]:
        """Phases in which each group's parameters are read, ascending, [groups]."""
        found: list[list[int]] = [[] for _ in self.problem.groups]
        of_layer: list[list[int]] = [[] for _ in range(self.layers)]
        for g, group in enumerate(self.problem.groups):
            for layer in group.layers:
                of_layer[layer].append(g)
        for phase in range(len(self)):
            for g in of_layer[self.layer(phase)]:
                found[g].append(phase)
        return tuple(map(tuple, found))

    def use_from(self, group: int, phase: int) -> int:
        """Return the first phase from this one on that uses a group's parameters, of this step or the next."""
        uses = self.uses[group]
        at = bisect_left(uses, phase)
        return uses[at] if at < len(uses) else len(self) + uses[0]

    def first_gradient(self, group: Group) -> int:
        """Return the first phase that makes a part of a group's gradient."""
        return 2 * self.layers - 1 - group.layers[-1]

    def last_gradient(self, group: Group) -> int:
        """Return the phase after which a group's gradient is complete: the last one that uses its parameters."""
        return len(self) - 1 - group.layers[0]

    def update_from(self, group: Group) -> int:
        """Return the phase after which a group's update may run: where its gradient is complete, or all are."""
        return len(self) - 1 if self.problem.clip_grad_norm else self.last_gradient(group)

    def next_use(self, group: Group) -> int:
        """Return the first phase of the next step that uses a group's parameters."""
        return len(self) + group.layers[0]
