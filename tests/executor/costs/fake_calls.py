"""Nodes that call an operator on tensors of some shapes, as a traced graph has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

INT = torch.int64
BOOL = torch.bool


@dataclass(frozen=True)
class T:
    """A tensor of this shape."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32


def t(*shape: int, dtype: torch.dtype = torch.float32) -> T:
    """A tensor of this shape."""
    return T(shape, dtype)


def ints(*shape: int) -> T:
    """A tensor of whole numbers."""
    return T(shape, INT)


def call(op: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """A node that calls the operator. It has no result: what is not known needs none."""
    graph = fx.Graph()
    with FakeTensorMode():

        def placed(leaf: Any) -> Any:
            if not isinstance(leaf, T):
                return leaf
            holder = graph.placeholder("tensor")
            holder.meta["val"] = torch.empty(leaf.shape, dtype=leaf.dtype)
            return holder

        args, kwargs = pytree.tree_map(placed, (args, kwargs), is_leaf=lambda leaf: isinstance(leaf, T))
    return graph.call_function(op, args, kwargs)
