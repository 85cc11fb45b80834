"""What alternatives share that read kept or recomputed results as they are."""

from __future__ import annotations

from torch import fx

from loadmaster.executor.memory.implementations.registry import Site, Value


class NothingEncoded:
    """For alternatives whose sites have no parent."""

    def encode(self, graph: fx.Graph, site: Site, value: Value) -> fx.Node:
        """Never asked for."""
        raise AssertionError(f"{type(self).__name__} encodes nothing")
