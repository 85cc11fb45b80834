"""Results of compiled code with the dimensions that its graph says.

Inductor of PyTorch 2.11 makes the sum over rows of a normalization's backward in one kernel with its sums along rows,
and drops the dimensions of size one that the sum was to keep: [896] for [1, 1, 896]. PyTorch 2.13 gives them back
(pytorch/pytorch#177782). Where the view that takes them away follows in the same graph nobody notices; where a graph is
cut between the two, the next segment refuses what it is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, fx

from loadmaster.executor.memory.run.segments import Runner


def shapes_of(module: fx.GraphModule) -> dict[int, torch.Size]:
    """The shapes of a graph's results by place, of those that have dimensions to lose."""
    results = cast(Sequence[Any], module.graph.output_node().args[0])
    fakes = {place: n.meta.get("val") for place, n in enumerate(results) if isinstance(n, fx.Node)}
    return {place: fake.shape for place, fake in fakes.items() if isinstance(fake, Tensor) and fake.dim() > 1}


def with_dimensions(runner: Runner, shapes: Mapping[int, torch.Size]) -> Runner:
    """The runner of a graph, whose results have as many dimensions as these shapes."""
    if not shapes:
        return runner
    # Found at the first call: the same code drops the same dimensions each time.
    lost: dict[int, torch.Size] | None = None

    def run(arguments: list[Any]) -> Any:
        nonlocal lost
        made = runner(arguments)
        if lost is None:
            lost = {place: shape for place, shape in shapes.items() if made[place].dim() != len(shape)}
        if not lost:
            return made
        return tuple(made[n].view(lost[n]) if n in lost else made[n] for n in range(len(made)))

    run._boxed_call = True  # type: ignore[attr-defined]
    return run
