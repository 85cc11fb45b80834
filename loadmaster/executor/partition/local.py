"""Call of one operator on one worker's share: its tensors replaced, its other arguments made to fit them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from loadmaster.executor.torch_private.operators import OpOverload, pytree, schema_of

# Stands for a tensor in arguments.
TENSOR = object()


def call_on_share(
    target: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    tensors: Sequence[Tensor],
    told: Mapping[str, Any],
) -> list[Tensor]:
    """Call an operator on other tensors than those in its arguments.

    Args:
        tensors: in the order in which tensors, or stand-ins for them, stand in ``args`` and ``kwargs``.
        told: arguments, by name, that say how large a tensor is.

    Returns:
        The tensors of its result, in order.
    """
    flat, form = pytree.tree_flatten((tuple(args), dict(kwargs)))
    given = iter(tensors)
    flat = [next(given) if isinstance(value, Tensor) or value is TENSOR else value for value in flat]
    new_args, new_kwargs = pytree.tree_unflatten(flat, form)
    return results_of(target(*with_told(target, new_args, told), **new_kwargs))


def results_of(result: object) -> list[Tensor]:
    """Tensors of a result, without the empty ones that some kernels return in addition."""
    return [value for value in pytree.tree_leaves(result) if isinstance(value, Tensor) and value.numel()]


def tensors_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """Tensors of a call's arguments, in order."""
    return [value for value in pytree.tree_leaves((tuple(args), dict(kwargs))) if isinstance(value, Tensor)]


def with_told(target: Callable[..., Any], args: Sequence[Any], told: Mapping[str, Any]) -> list[Any]:
    """Positional arguments with the values of ``told`` in place of their own."""
    found = list(args)
    if told:
        assert isinstance(target, OpOverload)
        names = [argument.name for argument in schema_of(target).arguments]
        for name, value in told.items():
            found[names.index(name)] = value
    return found
