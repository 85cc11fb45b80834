"""Weights that are hidden between two steps: a parameter shows the weights that updates change, or NaN.

Loops read and write parameters between steps: averages of weights (EMA), clipping of weights, swaps for an evaluation.
A copy, or weights whose update is still to run, would be another step's values to whoever reads them, and what is
written there would be lost. So parameters show NaN then, one element spread over their shape: it is seen, and PyTorch
refuses most writes into it. What was written all the same is told by the next call.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from loadmaster.errors import InputError
from loadmaster.executor.torch_private.autograd import version_of


def nothing_like(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Make NaN of a shape, with the memory of one element."""
    return torch.tensor(torch.nan).to(device, dtype).expand(shape)


class HiddenWeights:
    """Parameters that show NaN, and what they showed before."""

    def __init__(self) -> None:
        self._nothing: dict[nn.Parameter, Tensor] = {}
        self._hidden: list[tuple[str, nn.Parameter, Tensor, int]] = []

    def hide(self, name: str, parameters: Iterable[nn.Parameter]) -> None:
        """Let the parameters of a group show NaN."""
        for p in parameters:
            if p not in self._nothing:
                self._nothing[p] = nothing_like(p.shape, p.dtype, p.device)
            before = p.data
            p.data = self._nothing[p]
            self._hidden.append((name, p, before, version_of(p)))

    def show(self) -> None:
        """Let all show again what they did before. InputError: something was written into one meanwhile; what it showed
        before is there again."""
        written = None
        for name, p, before, version in self._hidden:
            if version_of(p) != version or p.data_ptr() != self._nothing[p].data_ptr():
                written = name
                del self._nothing[p]
            p.data = before
        self._hidden = []
        if written is not None:
            problem = "was written between two steps, where its weights are on the host or are still to be updated"
            remedy = "Release the step (step.release()), change the weights, and call fit again."
            raise InputError("model", written, problem, remedy)
