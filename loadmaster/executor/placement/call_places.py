"""Places in the user's model that call operators while a step runs: the module, and the line of its code.

In the forward pass, hooks on all modules know which one runs. In the backward pass, the autograd node that runs has the
number that it got when the forward operator was called.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

import loadmaster
from loadmaster.executor.steps.places import NOWHERE, Place
from loadmaster.executor.steps.step import Step
from loadmaster.executor.torch_private.autograd import current_node, next_sequence_number, sequence_number_of

_NOT_THE_MODELS = (
    *(str(Path(package.__file__ or "").parent) + "/" for package in (torch, loadmaster)),
    "<",
    str(Path(contextlib.__file__).parent),
)


class CallPlaces:
    """Tracker of the place that calls the present operator, while :meth:`followed` is on.

    Args:
        step: modules are named by their paths below its model, the model by its class.

    Attributes:
        otherwise: the place of operators that no module calls.
    """

    def __init__(self, step: Step) -> None:
        self._paths: dict[nn.Module, str] = {step: "loss"}
        if isinstance(step.loss, nn.Module):
            self._paths |= dict.fromkeys(step.loss.modules(), "loss")
        for path, inner in step.model.named_modules():
            self._paths[inner] = path or type(step.model).__name__
        self.otherwise = NOWHERE
        self._running: list[str] = []
        self._forward: dict[int, Place] = {}

    @contextlib.contextmanager
    def followed(self) -> Iterator[None]:
        """Track which module runs, by hooks on all modules, within the block."""

        def begins(module: nn.Module, _inputs: object) -> None:
            if module in self._paths:
                self._running.append(self._paths[module])

        def ends(module: nn.Module, _inputs: object, _output: object) -> None:
            if module in self._paths and self._running:
                self._running.pop()

        handles = [
            register_module_forward_pre_hook(begins),
            register_module_forward_hook(ends, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._running.clear()
            self._forward.clear()

    def here(self) -> Place:
        """Return the place of the operator that is being called."""
        node: Any = current_node()
        if self._running:
            place = Place(self._running[-1], _line())
            if node is None and torch.is_grad_enabled():
                # The node of a forward operator is made before the operator is called.
                self._forward.setdefault(next_sequence_number() - 1, place)
            return place
        if node is not None:
            return self._forward.get(sequence_number_of(node), NOWHERE)
        return self.otherwise


def _line() -> str | None:
    """File and line of the innermost stack frame that is neither PyTorch's nor Loadmaster's."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_NOT_THE_MODELS):
            return f"{Path(code.co_filename).name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return None
