"""Base class of alternatives that read kept or recomputed results as they are."""

from __future__ import annotations

from torch import fx

from loadmaster.executor.memory.implementations.registry import Site, Value


class NothingEncoded:
    """Base class of alternatives whose sites have no parent."""

    def encode(self, graph: fx.Graph, site: Site, value: Value) -> fx.Node:
        """Raise an AssertionError: sites without a parent have nothing to encode."""
        raise AssertionError(f"{type(self).__name__} encodes nothing")
