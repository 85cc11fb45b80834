"""Training step: a model and its loss as one module, called with one batch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, cast

import torch
from torch import nn

from loadmaster.errors import InputError
from loadmaster.executor.steps.batch import AnyBatch, Batch, Forward, Parameters, for_model
from loadmaster.executor.steps.one_graph.replaced_attributes import LibraryAttributes

Loss = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Calls:
    """Rules of calling a step, kept without its model: what its ``forward`` ``takes`` by keyword, the signature of its
    call, and whether a function of its own computes the loss from the model's output."""

    takes: Parameters
    forward: Forward
    has_loss: bool

    def batch(self, given: AnyBatch) -> Batch:
        """Turn what a user gives into the batch as the step takes it; raises InputError if it is not a batch."""
        return for_model(given, self.takes, has_loss=self.has_loss)

    def expect(self, batch: Batch) -> None:
        """Refuse a batch that the model cannot be called with, by an InputError that names what is wrong."""
        self.forward.expect(*_without_target(batch.args, batch.kwargs, self.takes, self.has_loss))


class Step(nn.Module):
    """Model and loss as one module: ``step(*inputs)`` or ``step(**inputs)`` is the scalar loss.

    Args:
        loss: of a positional batch, called as ``loss(model(*inputs[:-1]), inputs[-1])``: the last input is the target.
            Of a batch by keyword, called as ``loss(output, batch)``: the model gets the entries that its ``forward``
            names, the loss the whole batch. None: the model computes the loss itself, and returns it alone, as
            ``loss`` of a mapping or an object, first in a tuple, or as the only scalar in it.
        expects_loss: refuse an output without a loss. False: the model's output is taken as it is, as for a block.
            None: it is searched for a loss, but not refused: capturing has done so.
    """

    def __init__(self, model: nn.Module, loss: Loss | None, *, expects_loss: bool | None = None) -> None:
        super().__init__()
        if loss is not None and not callable(loss):
            remedy = "Give a function of the model's output and the target, or None where the model computes its loss."
            raise InputError("loss", type(loss).__name__, "cannot be called", remedy)
        self.model = model
        self.loss = loss
        self.expects_loss = expects_loss
        self.takes = Parameters.of(model)
        self.library_attributes = LibraryAttributes(model)

    @property
    def calls(self) -> Calls:
        """Rules of calling the step, with the hooks that the model has at present."""
        return Calls(self.takes, Forward.of(self.model), self.loss is not None)

    def batch(self, given: AnyBatch) -> Batch:
        """Turn what a user gives into the batch as :meth:`forward` takes it: :meth:`Calls.batch`."""
        # Not through ``calls``: to read a signature takes longer than all else of it.
        return for_model(given, self.takes, has_loss=self.loss is not None)

    def expect_call(self, batch: Batch) -> None:
        """Refuse a batch that the model cannot be called with: :meth:`Calls.expect`."""
        self.calls.expect(batch)

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Compute the loss of one batch, a scalar."""
        inputs, named = _without_target(args, kwargs, self.takes, self.loss is not None)
        output = self.model(*inputs, **named)
        if self.loss is not None:
            found: object = self.loss(output, args[-1] if args else kwargs)
            if isinstance(found, (tuple, list, Mapping)):
                raise NoLossAloneError(_described(found))
            return cast(torch.Tensor, found)
        if self.expects_loss is False:
            return cast(torch.Tensor, output)
        return _loss_in(output, refuse=self.expects_loss is True)


def _without_target(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], takes: Parameters, has_loss: bool
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Arguments that the model is called with: the target and entries for the loss alone are left out."""
    if not has_loss:
        return args, kwargs
    if args:
        return args[:-1], kwargs
    # Entries that forward does not name are for the loss; a forward that names none passes all on.
    return (), {name: value for name, value in kwargs.items() if name in takes.names} or kwargs


class NoLossError(Exception):
    """Error for an output without a loss, raised while tracing, where an :class:`InputError` cannot be made."""


class NoLossAloneError(NoLossError):
    """Error for a loss function that returned more than the loss."""


def returned_instead(kind: type[NoLossError], error: Exception) -> str | None:
    """Description of what was returned, read from the tracer's message; None if it did not end at such an error."""
    found = re.search(rf"""\b{kind.__name__}\(.*?(['"])(.*)\1""", str(error))
    return None if found is None else found[2]


def _loss_in(output: Any, *, refuse: bool) -> torch.Tensor:
    """Find the loss that a model's output is or holds; the output itself where it holds none."""
    found = output
    if isinstance(output, Mapping):
        found = output.get("loss")
    elif not isinstance(output, torch.Tensor):
        found = getattr(output, "loss", _loss_among(output) if isinstance(output, (tuple, list)) else None)
    if _is_scalar(found):
        return cast(torch.Tensor, found)
    if refuse:
        raise NoLossError(_described(output))
    return cast(torch.Tensor, output)


def _loss_among(values: Sequence[Any]) -> Any:
    """Find the loss in a tuple: the first value, if a scalar, as in transformers, or the only floating-point scalar."""
    if values and _is_scalar(values[0]):
        return values[0]
    scalars = [value for value in values if _is_scalar(value) and value.is_floating_point()]
    return scalars[0] if len(scalars) == 1 else None


def _is_scalar(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1


def _described(output: Any) -> str:
    """Describe a model's output in words: its type, and what it holds."""
    kind = type(output).__name__
    if isinstance(output, torch.Tensor):
        return f"a tensor of shape {tuple(output.shape)}"
    if isinstance(output, Mapping):
        return f"{kind} with {', '.join([str(key) for key in output])}"
    if is_dataclass(output):
        return f"{kind} with {', '.join([f.name for f in fields(output) if getattr(output, f.name) is not None])}"
    if isinstance(output, (tuple, list)):
        return f"{kind} of {', '.join([type(value).__name__ for value in output])}"
    return kind
