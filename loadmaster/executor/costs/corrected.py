"""Costs corrected by what a whole step measured: one factor for kernels of libraries, one for all others.

Convolutions, matrix products and attention run as kernels of libraries and are bound by arithmetic; everything else
moves bytes, fused by a compiler or not. Operators measured one by one and a model of traffic can be off for either
sort in its own way (clocks under load, caches, layouts), but then by the same factor for the whole sort.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from loadmaster.executor.costs.model import CostModel
from loadmaster.executor.costs.traffic import flops


@dataclass(frozen=True)
class Corrected:
    """A cost model whose times are scaled; workspaces stay.

    Attributes:
        base: what is corrected.
        products: factor for operators that count FLOPs: convolutions, matrix products, attention.
        moves: factor for everything else, fused or on its own.
    """

    base: CostModel
    products: float = 1.0
    moves: float = 1.0

    def node_us(self, node: fx.Node) -> float:
        """Time of one operator on its own, us."""
        return self.base.node_us(node) * (self.products if flops(node) else self.moves)

    def workspace_bytes(self, node: fx.Node) -> int:
        """Workspace of one operator, bytes: the base's, unchanged."""
        return self.base.workspace_bytes(node)

    def move_us(self, size_bytes: int, kernels: int = 1) -> float:
        """Time of fused kernels that move so many bytes together, us."""
        return self.base.move_us(size_bytes, kernels) * self.moves
