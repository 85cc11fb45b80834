"""Interface of cost models: time and workspace of graph nodes, from the fake tensors in ``node.meta["val"]``.

Two models stand around another: one is corrected by a measured step, one shows which operator it is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from torch import fx

from loadmaster.executor.costs.traffic import flops
from loadmaster.live_line import LiveLine


class CostModel(Protocol):
    """Estimated or measured costs of the operators of one graph on one device."""

    def node_us(self, node: fx.Node) -> float:
        """Time of one operator on its own, microseconds; 0 for views and for nodes that are not operators."""

    def workspace_bytes(self, node: fx.Node) -> int:
        """Memory that the operator takes while it runs, in addition to its inputs and results."""

    def move_us(self, size_bytes: int, kernels: int = 1) -> float:
        """Time of fused kernels that read and write so many bytes together."""


@dataclass(frozen=True)
class Corrected:
    """A cost model whose times are scaled; workspaces stay.

    ``products`` is the factor for operators that count FLOPs (convolutions, matrix products, attention): kernels of
    libraries, bound by arithmetic. ``moves`` is for everything else, which moves bytes, fused or not. Measurements one
    by one and a model of traffic are off for either sort in its own way (clocks under load, caches, layouts), but by
    the same factor for the whole sort.
    """

    base: CostModel
    products: float = 1.0
    moves: float = 1.0

    def node_us(self, node: fx.Node) -> float:
        return self.base.node_us(node) * (self.products if flops(node) else self.moves)

    def workspace_bytes(self, node: fx.Node) -> int:
        return self.base.workspace_bytes(node)

    def move_us(self, size_bytes: int, kernels: int = 1) -> float:
        return self.base.move_us(size_bytes, kernels) * self.moves


@dataclass(frozen=True)
class ShownCosts:
    """A cost model whose line shows which of ``count`` operators it is asked for: measuring may take minutes."""

    base: CostModel
    line: LiveLine
    name: str
    count: int
    _asked: set[fx.Node] = field(default_factory=set)

    def node_us(self, node: fx.Node) -> float:
        self._tell(node)
        return self.base.node_us(node)

    def workspace_bytes(self, node: fx.Node) -> int:
        self._tell(node)
        return self.base.workspace_bytes(node)

    def move_us(self, size_bytes: int, kernels: int = 1) -> float:
        return self.base.move_us(size_bytes, kernels)

    def _tell(self, node: fx.Node) -> None:
        if node not in self._asked:
            self._asked.add(node)
            number = len(self._asked)
            self.line.show(f"{self.name}: costs of operator {number} of {max(number, self.count)}", begins=number == 1)
