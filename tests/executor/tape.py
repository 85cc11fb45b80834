"""Graphs written down call by call, whose nodes carry fake results."""

from __future__ import annotations

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode


class Tape:
    """Builds a graph whose nodes carry fake results."""

    def __init__(self) -> None:
        self.mode = FakeTensorMode()
        self.graph = fx.Graph()

    def input(self, *shape: int, dtype: torch.dtype = torch.float32) -> fx.Node:
        node = self.graph.placeholder(f"x_{len(self.graph.nodes)}")
        with self.mode:
            node.meta["val"] = torch.empty(shape, dtype=dtype)
        return node

    def call(self, op, *args) -> fx.Node:
        node = self.graph.call_function(op, args)
        with self.mode:
            node.meta["val"] = op(*fx.node.map_arg(args, lambda n: n.meta["val"]))
        return node
