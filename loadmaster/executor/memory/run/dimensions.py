"""Results of compiled code with the dimensions that its graph says.

Inductor of PyTorch 2.11 makes the sum over rows of a normalization's backward in one kernel with its sums along rows,
and drops the dimensions of size one that the sum was to keep: [896] for [1, 1, 896]. PyTorch 2.13 gives them back
(pytorch/pytorch#177782). Where the view that takes them away follows in the same graph nobody notices; where a graph is
cut between the two, the next segment refuses what it is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor, fx

from loadmaster.executor.memory.run.segments import Runner
from loadmaster.executor.steps.launches import launch_directly


def shapes_of(module: fx.GraphModule) -> dict[int, torch.Size]:
    """The shapes of a graph's results by place, of those that have dimensions to lose."""
    results = cast(Sequence[Any], module.graph.output_node().args[0])
    fakes = {place: n.meta.get("val") for place, n in enumerate(results) if isinstance(n, fx.Node)}
    return {place: fake.shape for place, fake in fakes.items() if isinstance(fake, Tensor) and fake.dim() > 1}


class WithDimensions:
    """The runner of a graph, whose results have as many dimensions as these shapes.

    Attributes:
        direct: from the first call on, what computes the results without what only that call needs.

    Args:
        modules: those that Inductor wrote for the graph.
    """

    def __init__(self, compiled: Runner, shapes: Mapping[int, torch.Size], modules: Sequence[ModuleType]) -> None:
        self._compiled = compiled
        self._shapes = shapes
        self._modules = modules
        self.direct: Runner = self._first
        self._boxed_call = True

    def __call__(self, arguments: list[Any]) -> Any:
        return self.direct(arguments)

    def _first(self, arguments: list[Any]) -> Any:
        made = self._compiled(arguments)
        # The same code drops the same dimensions each time.
        lost = {place: shape for place, shape in self._shapes.items() if made[place].dim() != len(shape)}
        # Inductor's wrapper ends the tuning of kernels, which their first call does.
        code = getattr(self._compiled, "current_callable", None) or self._compiled
        self.direct = partial(_viewed, code, lost) if lost else code
        launch_directly(self._modules)
        return _with(made, lost)


def _viewed(code: Runner, lost: Mapping[int, torch.Size], arguments: list[Any]) -> tuple[Any, ...]:
    return _with(code(arguments), lost)


def _with(made: Sequence[Any], lost: Mapping[int, torch.Size]) -> tuple[Any, ...]:
    return tuple(made[n].view(lost[n]) if n in lost else made[n] for n in range(len(made)))
