"""One operator on one worker's share: its tensors cut, and its other arguments made to fit them.

Some operators are told shapes (views, expansions, factories): on a share they are told the share's. Everything else is
called as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

# The name of the argument that tells the shape of the result.
_SHAPES = ("size", "shape")


def call_on_share(
    target: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    tensors: Sequence[Tensor],
    result_shapes: Sequence[Sequence[int]],
) -> list[Tensor]:
    """Call an operator on other tensors than those in its arguments.

    Args:
        tensors: in the order in which tensors stand in ``args`` and ``kwargs``.
        result_shapes: of the share of each result.

    Returns:
        The tensors of its result, in order.
    """
    flat, form = pytree.tree_flatten((tuple(args), dict(kwargs)))
    given = iter(tensors)
    flat = [next(given) if isinstance(value, Tensor) else value for value in flat]
    new_args, new_kwargs = pytree.tree_unflatten(flat, form)
    new_args, new_kwargs = _told(target, list(new_args), new_kwargs, result_shapes)
    return results_of(target(*new_args, **new_kwargs))


def results_of(result: object) -> list[Tensor]:
    """The tensors of a result."""
    return [value for value in pytree.tree_leaves(result) if isinstance(value, Tensor)]


def tensors_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The tensors of a call's arguments, in order."""
    return [value for value in pytree.tree_leaves((tuple(args), dict(kwargs))) if isinstance(value, Tensor)]


def _told(
    target: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], result_shapes: Sequence[Sequence[int]]
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments with the shape of the share where the operator is told one."""
    if not isinstance(target, torch._ops.OpOverload) or len(result_shapes) != 1:
        return args, kwargs
    for n, argument in enumerate(target._schema.arguments):
        if argument.name in _SHAPES:
            if n < len(args):
                args[n] = list(result_shapes[0])
            elif argument.name in kwargs:
                kwargs[argument.name] = list(result_shapes[0])
    return args, kwargs
