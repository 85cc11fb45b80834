"""Operators and views of a traced graph on one worker's share.

An operator's tensors are replaced, and its other arguments made to fit them. Views are in the terms of
:mod:`loadmaster.models.partition.views`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, fx

from loadmaster.executor.torch_private.operators import OpOverload, pytree, schema_of
from loadmaster.models.partition.views import Cut, ShapeView, Stage

# Stands for a tensor in arguments.
TENSOR = object()


def call_on_share(
    target: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    tensors: Sequence[Tensor],
    told: Mapping[str, Any],
) -> list[Tensor]:
    """Call an operator on other ``tensors``, in the order in which tensors, or stand-ins for them, stand in its
    arguments; return the tensors of its result, in order. ``told`` are arguments, by name, that say how large a tensor
    is."""
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


aten = torch.ops.aten
RESHAPES = frozenset({aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten._reshape_alias.default})
_SAME_ORDER = frozenset({*RESHAPES, aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims})
_SAME = frozenset({aten.detach.default, aten.alias.default})
_PARTS = frozenset({aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int})


def view_of(node: fx.Node, source: ShapeView) -> ShapeView | None:
    """Return a node, also ``getitem`` of one that takes a tensor apart, as a view of the tensor that its source is a
    view of; None where an operator must make it."""
    if node.target is operator.getitem:
        parts, at = node.args
        assert isinstance(parts, fx.Node)
        return _part(parts, source, int(at))  # type: ignore[arg-type]
    shape = node.meta["val"].shape
    target: Any = node.target
    if target in _SAME:
        return source
    if target in _SAME_ORDER:
        return source.reshaped(shape)
    if target is aten.expand.default:
        return source.expanded(shape)
    return _moved(node, source)


def makes_parts(node: fx.Node) -> bool:
    """Return whether a node's elements are views of its source, as with ``split`` and ``unbind``."""
    return node.target in _PARTS


def _moved(node: fx.Node, source: ShapeView) -> ShapeView | None:
    rank, target = len(source.shape), node.target
    args: tuple[Any, ...] = node.args[1:]
    if target is aten.t.default:
        return source.permuted([*range(rank)][::-1])
    if target is aten.transpose.int:
        order = [*range(rank)]
        one, other = int(args[0]) % rank, int(args[1]) % rank
        order[one], order[other] = other, one
        return source.permuted(order)
    if target is aten.permute.default:
        return source.permuted([int(d) % rank for d in args[0]])
    if target is aten.slice.Tensor:
        given: list[Any] = [*args, *(0, None, None, 1)[len(args) :]]
        dim = int(given[0]) % rank
        return source.sliced(dim, *slice(*given[1:]).indices(source.shape[dim]))
    if target is aten.select.int:
        return _selected(source, int(args[0]) % rank, int(args[1]))
    return None


def _selected(source: ShapeView, dim: int, at: int) -> ShapeView | None:
    shape = source.shape
    at %= shape[dim]
    return source.sliced(dim, at, at + 1).reshaped((*shape[:dim], *shape[dim + 1 :]))


def _part(parts: fx.Node, source: ShapeView, at: int) -> ShapeView | None:
    rank = len(source.shape)
    given: tuple[Any, ...] = parts.args[1:]
    if parts.target is aten.unbind.int:
        return _selected(source, int(given[0]) % rank if given else 0, at)
    dim = int(given[1]) % rank if len(given) > 1 else 0
    sizes = [int(tensor.shape[dim]) for tensor in parts.meta["val"]]
    start = sum(sizes[:at])
    return source.sliced(dim, start, start + sizes[at])


def on_share(view: ShapeView, cuts: Sequence[tuple[Cut, Fraction]]) -> Callable[[Tensor], Tensor]:
    """Make the function that takes a view of a worker's share, by the cuts of the view, each with the share."""
    if view.is_identity:
        return lambda share: share
    steps = [_stage(stage, extents) for stage, extents in zip(view.stages, view.local(cuts), strict=True)]

    def seen(share: Tensor) -> Tensor:
        for step in steps:
            share = step(share)
        return share

    return seen


def _stage(stage: Stage, extents: Sequence[int]) -> Callable[[Tensor], Tensor]:
    sourced = [n for n, factor in enumerate(stage.factors) if factor.source is not None]
    in_order = sorted(
        sourced, key=lambda n: (stage.factors[n].source, stage.factors[n].outer, -stage.factors[n].extent)
    )
    cut_shape = [extents[n] for n in in_order]
    order = [in_order.index(n) for n in sourced]
    ends = [sum(stage.dims[: d + 1]) for d in range(len(stage.dims))]
    joined = [math.prod(extents[end - count : end]) for end, count in zip(ends, stage.dims, strict=True)]
    spread = list(extents)
    thin = [extents[n] if n in sourced else 1 for n in range(len(extents))]
    kept = None
    if stage.kept is not None:
        dim, start, stop, step = stage.kept
        kept = (slice(None),) * dim + (slice(start, stop, step),)

    def seen(share: Tensor) -> Tensor:
        found = share.reshape(cut_shape).permute(order)
        if thin != spread or len(order) != len(spread):
            found = found.reshape(thin).expand(spread)
        found = found.reshape(joined)
        return found if kept is None else found[kept]

    return seen
