"""Operator calls without a graph, in the form that cost models take."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from loadmaster.executor.torch_private.operators import pytree


@dataclass(frozen=True)
class Shaped:
    """Shape, strides and dtype of a tensor, without its memory."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def on_meta(self) -> Tensor:
        """Make a tensor of that shape on the meta device, which has no memory either."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="meta")


@dataclass(frozen=True, eq=False)
class Call:
    """An operator with arguments and result, each tensor a :class:`Shaped`; calls with one ``key`` run the same."""

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    key: Hashable

    @classmethod
    def of(cls, target: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Call:
        """Describe a call, with no hold on the memory of its tensors."""
        values, structure = pytree.tree_flatten((tuple(args), dict(kwargs), result))
        leaves = [_described(value) for value in values]
        called, named, made = pytree.tree_unflatten(leaves, structure)
        return cls(target, called, named, made, (str(target), tuple(map(repr, leaves))))

    def node(self, graph: fx.Graph) -> fx.Node:
        """Add the call to a graph, with placeholders for its tensors, and return its node."""

        def placed(leaf: object) -> object:
            if not isinstance(leaf, Shaped):
                return leaf
            holder = graph.placeholder("tensor")
            holder.meta["val"] = leaf.on_meta()
            return holder

        args, kwargs = pytree.tree_map(placed, (self.args, self.kwargs))
        node = graph.call_function(self.target, args, kwargs)
        node.meta["val"] = pytree.tree_map(
            lambda leaf: leaf.on_meta() if isinstance(leaf, Shaped) else leaf, self.result
        )
        return node


def _described(value: object) -> object:
    if isinstance(value, Tensor):
        return Shaped(tuple(value.shape), tuple(value.stride()), value.dtype)
    return None if isinstance(value, torch.Generator) else value
