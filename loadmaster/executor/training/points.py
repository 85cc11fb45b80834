"""Points of a layer: the ways to run it, each with a name, from all results kept to none.

``keep`` is plain PyTorch: autograd keeps what it saves. ``products`` keeps results of matrix products, convolutions and
attention, ``attention`` those of attention alone, ``checkpoint`` nothing but the block's input; the rest is computed
again in the backward pass. What runs after the blocks keeps all, or computes its loss in chunks (``chunked loss``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from loadmaster.errors import InputError
from loadmaster.executor.training.recompute import Recomputed
from loadmaster.executor.training.selective import attention, compile_block, compiled_with, products
from loadmaster.models.training.problem import TrainingProblem

KEEP, CHECKPOINT = "keep", "checkpoint"
_SELECTIVE = {"products": products, "attention": attention}
BLOCK_POINTS = (KEEP, *_SELECTIVE, CHECKPOINT)
CHUNKED_LOSS = "chunked loss"
POINTS = (*BLOCK_POINTS, CHUNKED_LOSS)


class BlockPoints:
    """A block's forward pass at each of its points. Under torch.compile, each is compiled when it first runs."""

    def __init__(self, block: nn.Module, *, compiled: bool) -> None:
        runs = compile_block(block) if compiled else block.forward
        again = Recomputed(block, runs)
        self._ways: dict[str, Callable[..., Any]] = {KEEP: runs, CHECKPOINT: again}
        for name, keeps in _SELECTIVE.items():
            eager = Recomputed(block, block.forward, keeps)
            self._ways[name] = compiled_with(block, keeps, again.contexts) if compiled else eager

    def run(self, point: str, /, *args: Any, **kwargs: Any) -> Any:
        """Run the forward pass at a point."""
        return self._ways[point](*args, **kwargs)


class OwnForward:
    """Handle that gives a block its own ``forward`` back."""

    def __init__(self, block: nn.Module) -> None:
        self._block, self._had = block, vars(block).get("forward")

    def remove(self) -> None:
        """Put it back."""
        vars(self._block).pop("forward", None)
        if self._had is not None:
            self._block.forward = self._had


def expect_known(problem: TrainingProblem) -> None:
    """Refuse a problem whose layers have points that no layer has here."""
    unknown = [p.name for of in problem.classes for p in of.points if p.name not in POINTS]
    if unknown:
        remedy = f"Plan a problem that was measured: its points are {', '.join(POINTS)}."
        raise InputError("problem", unknown[0], "has a point at which no layer can run", remedy)
