"""Costs that say which operator they are asked for: measuring takes minutes on a large model."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import fx

from loadmaster.executor.costs.model import CostModel
from loadmaster.live_line import LiveLine


@dataclass(frozen=True)
class Told:
    """A cost model whose line shows which operator it is asked for.

    Attributes:
        base: the costs.
        name: whose they are.
        count: how many operators there are.
    """

    base: CostModel
    line: LiveLine
    name: str
    count: int
    _asked: set[fx.Node] = field(default_factory=set)

    def node_us(self, node: fx.Node) -> float:
        """Time of one operator on its own, us, as the base says."""
        self._tell(node)
        return self.base.node_us(node)

    def workspace_bytes(self, node: fx.Node) -> int:
        """Workspace of one operator, bytes, as the base says."""
        self._tell(node)
        return self.base.workspace_bytes(node)

    def move_us(self, size_bytes: int, kernels: int = 1) -> float:
        """Time of fused kernels, us, as the base says."""
        return self.base.move_us(size_bytes, kernels)

    def _tell(self, node: fx.Node) -> None:
        if node not in self._asked:
            self._asked.add(node)
            number = len(self._asked)
            self.line.show(f"{self.name}: costs of operator {number} of {max(number, self.count)}", begins=number == 1)
