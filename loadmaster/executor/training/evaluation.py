"""Evaluations between the passes of a planned step: streamed weights come where a block runs, and go after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from loadmaster.executor.training.weights import AnyWeights, HostWeights


@contextmanager
def as_in_training() -> Iterator[None]:
    """Make tensors that a later backward pass may use, whatever mode the caller is in; without gradients."""
    with torch.inference_mode(mode=False), torch.no_grad():
        yield


class Visits:
    """Weights that are on the device for an evaluation alone. Those that the plan has there anyway stay."""

    def __init__(self) -> None:
        self._here: list[tuple[nn.Module, HostWeights]] = []

    def come(self, module: nn.Module, needed: AnyWeights) -> None:
        """Have weights on the device while a module runs."""
        with as_in_training():
            for weights in needed:
                if isinstance(weights, HostWeights) and not weights.is_present:
                    self._here.append((module, weights))
                weights.need()

    def go(self, module: nn.Module | None = None) -> None:
        """Free the memory of weights that have come for a module (None: for any)."""
        going = [w for of, w in self._here if module is None or of is module]
        self._here = [(of, w) for of, w in self._here if w not in going]
        with as_in_training():
            for weights in going:
                weights.drop()
