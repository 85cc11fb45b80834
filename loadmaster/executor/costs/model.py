"""Interface of cost models: time and workspace of graph nodes, from the fake tensors in ``node.meta["val"]``."""

from __future__ import annotations

from typing import Protocol

from torch import fx


class CostModel(Protocol):
    """Estimated or measured costs of the operators of one graph on one device."""

    def node_us(self, node: fx.Node) -> float:
        """Time of one operator on its own, microseconds; 0 for views and for nodes that are not operators."""
        ...

    def workspace_bytes(self, node: fx.Node) -> int:
        """Memory that the operator takes while it runs, in addition to its inputs and results."""
        ...

    def move_us(self, size_bytes: int, kernels: int = 1) -> float:
        """Time of fused kernels that read and write so many bytes together."""
        ...
