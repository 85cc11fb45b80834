"""Kernels on shares for the operators of a traced step, under the strategies of a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.traceback import annotate

from loadmaster.executor.partition.checkpoints import is_made_again
from loadmaster.executor.partition.on_shares import TENSOR, call_on_share, on_share
from loadmaster.executor.partition.split_graph import Run
from loadmaster.executor.partition.split_step import Kernel
from loadmaster.executor.partition.traced import TracedStep
from loadmaster.executor.partition.trials import is_tensor, schema, value
from loadmaster.executor.steps.step_graph import is_random
from loadmaster.executor.torch_private.operators import pytree
from loadmaster.models.partition.placements import Mesh
from loadmaster.models.partition.problem import PartitionProblem
from loadmaster.models.partition.views import Cut

# Annotation of nodes of a compiled step that a checkpoint computes again.
MADE_AGAIN = {"loadmaster": "made again"}


class Draws:
    """Random numbers of a step: workers that hold the same share draw the same numbers, others do not."""

    def __init__(self, coordinate: Sequence[int]) -> None:
        self.coordinate = coordinate
        self._seed = 0

    def begin(self) -> None:
        """Begin a new step. Every worker's default generator must be in the same state."""
        self._seed = int(torch.randint(1 << 62, (1,)).item())

    def seed(self, operator: int, axes: Sequence[int]) -> int:
        """Seed of an operator that is split along these axes."""
        where = tuple(self.coordinate[axis] for axis in axes)
        return hash((self._seed, operator, *zip(axes, where, strict=True))) & ((1 << 62) - 1)


def kernels(
    traced: TracedStep, problem: PartitionProblem, strategies: Sequence[Sequence[int]], draws: Draws
) -> tuple[list[Kernel], int]:
    """Make the kernels of all operators of a problem that was captured from the step, except those of its optimizer;
    return them, and the number of those of the forward pass. Each operator has a strategy for each axis."""
    graph, fractions = traced.graph, Mesh(problem.axes).worker(draws.coordinate).fractions
    steps: list[Run | None] = [*graph.runs]
    steps[graph.forward_count : graph.forward_count] = [None] * len(graph.buffers)
    found: list[Kernel] = []
    done = forward = 0
    for operator, taken in zip(problem.operators, strategies, strict=True):
        if done == len(steps):
            break
        if problem.is_copy(operator):
            found.append(_copy)
            continue
        run = steps[done]
        kernel = _update if run is None else _drawing(run, fractions, taken, draws, done)
        found.append(partial(_again, kernel) if run is not None and is_made_again(run.node) else kernel)
        done += 1
        if done == graph.forward_count:
            forward = len(found)
    return found, forward


def _drawing(run: Run, fractions: Sequence[Fraction], taken: Sequence[int], draws: Draws, n: int) -> Kernel:
    """Make the kernel of one operator, with random numbers of its own where it draws some."""
    kernel = _kernel(run, fractions, taken)
    if not is_random(run.node):
        return kernel
    axes = [axis for axis, s in enumerate(taken) if s < len(run.seen)]
    return partial(_seeded, draws, n, axes, kernel)


def _again(kernel: Kernel, given: Sequence[Tensor], shapes: Sequence[Sequence[int]]) -> object:
    """Run a kernel that a checkpoint repeats, marked so that no compiler moves it into the forward pass."""
    with annotate(MADE_AGAIN):
        return kernel(given, shapes)


def _copy(given: Sequence[Tensor], _shapes: object) -> list[Tensor]:
    return [given[0]]


def _update(given: Sequence[Tensor], _shapes: object) -> None:
    given[0].copy_(given[1])


def _seeded(
    draws: Draws, n: int, axes: Sequence[int], kernel: Kernel, given: Sequence[Tensor], shapes: Sequence[Sequence[int]]
) -> object:
    with torch.random.fork_rng([t.device for t in given if t.is_cuda]):
        torch.manual_seed(draws.seed(n, axes))
        return kernel(given, shapes)


def _kernel(run: Run, fractions: Sequence[Fraction], chosen: Sequence[int]) -> Kernel:
    """Make the kernel of one operator: first its views of the shares, then the operator itself."""
    split = [(run.seen[s], share) for s, share in zip(chosen, fractions, strict=True) if s < len(run.seen)]

    def cuts(slot: int) -> list[tuple[Cut, Fraction]]:
        return [(cut, share) for seen, share in split if (cut := seen.cuts[slot]) is not None]

    views = [on_share(view, cuts(slot)) for slot, (_, view) in enumerate(run.inputs)]
    node = run.node
    target: Any = node.target
    args, kwargs = pytree.tree_map(_placed, (node.args, dict(node.kwargs)))
    told: dict[str, Any] = {}
    if split and run.admitted.formula is not None:
        formula = run.admitted.formula
        extents = formula.extents([*(v.shape for _, v in run.inputs), *(v.shape for _, v in run.outputs)])
        for seen, share in split:
            extents[seen.index] = int(extents[seen.index] * share)
        told = formula.told_values(
            extents, {a.name: v for a, v in zip(schema(node).arguments, node.args, strict=False)}
        )
    return partial(_run, target, args, kwargs, views, told)


def _run(
    target: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    views: Sequence[Callable[[Tensor], Tensor]],
    told: dict[str, Any],
    given: Sequence[Tensor],
    shapes: Sequence[Sequence[int]],
) -> list[Tensor]:
    seen = [view(share) for view, share in zip(views, given, strict=True)]
    results = call_on_share(target, args, kwargs, seen, told)
    return [result.reshape(shape) for result, shape in zip(results, shapes, strict=True)]


def _placed(leaf: object) -> object:
    if not isinstance(leaf, fx.Node):
        return leaf
    return TENSOR if is_tensor(leaf) else value(leaf)
