"""One batch of a training step, as data loaders, tokenizers and collators hand it out.

A tuple or list holds positional inputs, a mapping (a dict, transformers' ``BatchEncoding``) inputs by keyword; inside
either, values may be nested, None, numbers or words. Everything that takes a batch takes it through here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import torch
from torch import nn

from loadmaster.errors import InputError
from loadmaster.executor.torch_private.modules import forward_pre_hooks_of, without_compile

_MOST_NAMES = 12


@dataclass(frozen=True, eq=False)
class Batch:
    """Arguments of one call of a step: ``step(*args, **kwargs)``. With a loss, the last one of ``args`` is its target.
    ``first`` is the place that ``args[0]`` had for the user: 1 where a mapping before it became ``kwargs``."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    first: int = 0

    def named_leaves(self) -> Iterator[tuple[str, Any]]:
        """Every value that holds no others, by its name in the user's words: ``[0]``, ``input_ids``, ``[1]['x']``."""
        for place, value in enumerate(self.args, self.first):
            yield from _leaves(f"[{place}]", value)
        for name, value in self.kwargs.items():
            yield from _leaves(name, value)


AnyBatch = Batch | Sequence[Any] | Mapping[str, Any]
"""Everything that a user may give as one batch."""


def batch_of(given: AnyBatch) -> Batch:
    """Make a :class:`Batch`: a mapping becomes inputs by keyword, a tuple or list positional inputs. Raises InputError
    for a tensor, which would be taken apart into its rows, and for what is neither."""
    if isinstance(given, Batch):
        return given
    if isinstance(given, Mapping):
        unnamed = [key for key in given if not isinstance(key, str)]
        if unnamed:
            remedy = "Name each input as the model's forward does; to pass the mapping itself, give (mapping,)."
            raise InputError("batch", unnamed[0], "is a mapping with a key that is no name", remedy)
        return Batch(kwargs=dict(given))
    if isinstance(given, Sequence) and not isinstance(given, (str, bytes)):
        return Batch(tuple(given))
    remedy = "Give a tuple of what a step takes, (x, y), or a dict by keyword, {'input_ids': ..., 'labels': ...}."
    if isinstance(given, torch.Tensor):
        raise InputError("batch", tuple(given.shape), "is a tensor", remedy)
    raise InputError("batch", type(given).__name__, "is neither a tuple nor a mapping", remedy)


@dataclass(frozen=True)
class Parameters:
    """Parameters that ``forward`` takes by keyword: ``needed`` have no default; ``any_name``: it takes ``**kwargs``."""

    names: frozenset[str] = frozenset()
    needed: frozenset[str] = frozenset()
    any_name: bool = True

    @classmethod
    def of(cls, model: nn.Module) -> Parameters:
        """Read the parameters of the model that is called, below ``torch.compile``."""
        signature = _signature(without_compile(model).forward)
        if signature is None:
            return cls()
        found = list(signature.parameters.values())
        named = [p for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        needed = frozenset(p.name for p in named if p.default is p.empty)
        return cls(frozenset(p.name for p in named), needed, any(p.kind == p.VAR_KEYWORD for p in found))

    def is_call(self, given: Mapping[Any, Any]) -> bool:
        """Return whether a mapping is meant as keywords of ``forward``, not as one input: it names what is needed. It
        is also meant so with a name too many: the call reports that one. But where ``forward`` takes one input only, a
        mapping of several is that input."""
        if not given or not all(isinstance(key, str) for key in given) or not self.needed <= given.keys():
            return False
        if not self.names:
            return self.any_name
        known = self.names & given.keys()
        return bool(known) and (self.any_name or len(known) == len(given) or len(self.names) > 1)


def for_model(given: AnyBatch, takes: Parameters, *, has_loss: bool) -> Batch:
    """Make a batch for a model: a mapping alone, or alone before the target, becomes keywords where it is meant so. So
    a step can be called as ``step(batch)`` with a mapping, and ``({"input_ids": ...}, labels)`` is a batch."""
    batch = batch_of(given)
    if batch.kwargs or not batch.args or not isinstance(batch.args[0], Mapping):
        return batch
    first, rest = batch.args[0], batch.args[1:]
    if has_loss and not rest:
        return batch_of(first)
    if len(rest) == int(has_loss) and takes.is_call(first):
        return replace(batch, args=rest, kwargs=dict(first), first=1)
    return batch


@dataclass(frozen=True)
class Forward:
    """Signature of a model's call, kept without the model; None where anything may be given: a ``forward`` that is not
    written in Python has no signature, and hooks may give other arguments."""

    model: str
    signature: inspect.Signature | None

    @classmethod
    def of(cls, model: nn.Module) -> Forward:
        """Read the signature of a model's ``forward``, as it is called."""
        # A decorated forward may take more than what it decorates (transformers' return_dict).
        signature = None if forward_pre_hooks_of(model) else _signature(model.forward, follow_wrapped=False)
        return cls(type(model).__name__, signature)

    def expect(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Refuse a call that the model's ``forward`` cannot take, by an InputError that names the argument that is
        missing or too many, and what ``forward`` takes."""
        if self.signature is None:
            return
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            names = list(self.signature.parameters)
            listed = ", ".join([*names[:_MOST_NAMES], "..."] if len(names) > _MOST_NAMES else names)
            raise InputError(
                "batch",
                [f"[{place}]" for place in range(len(args))] + list(kwargs),
                f"does not fit {self.model}.forward, which takes {listed or 'nothing'}: {error}",
                "Give inputs as forward takes them, as a tuple or by keyword; with a loss of yours and a tuple, the "
                "target after them: (x, y). A mapping that is one input goes into a tuple: ({...},).",
            ) from None


def _signature(function: Callable[..., Any], *, follow_wrapped: bool = True) -> inspect.Signature | None:
    try:
        return inspect.signature(function, follow_wrapped=follow_wrapped)
    except (TypeError, ValueError):  # not written in Python
        return None


def _leaves(name: str, value: object) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(f"{name}[{key!r}]", inner)
    elif isinstance(value, (tuple, list)):
        for place, inner in enumerate(value):
            yield from _leaves(f"{name}[{place}]", inner)
    elif is_dataclass(value) and not isinstance(value, type):
        for one in fields(value):
            yield from _leaves(f"{name}.{one.name}", getattr(value, one.name))
    else:
        yield name, value
