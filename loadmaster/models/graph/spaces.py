"""Row spaces: a value's space says what the value depends on, and so how many rows it needs.

    one          a single row: an untyped weight
    relation     a row for each relation
    node_type    a row for each node type
    node         a row for each node
    source       seen from edges: the same row for all edges with one source node
    target       ... with one target node
    source_pair  ... with one source node and one relation: compact materialization, [Wu24] section 3.3.2
    target_pair  ... with one target node and one relation
    edge         a row for each edge

The space of a value follows from what makes it: it is the coarsest one on which the value is a function (:func:`join`).
Nobody states it. A value can be kept on a finer space, with equal rows; on a coarser one it does not exist.

Example: messages ``h[source] W[relation]`` live on ``source_pair``; a score that also reads the target, on ``edge``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

from loadmaster.errors import InputError

Space = Literal["one", "relation", "node_type", "node", "source", "target", "source_pair", "target_pair", "edge"]
SPACES: tuple[Space, ...] = get_args(Space)
# Spaces of weights: few rows, each for many nodes or edges, which are stored sorted by it.
WEIGHT_SPACES: tuple[Space, ...] = ("one", "relation", "node_type")

# Keys by which an edge finds its row of a space. Spaces of nodes alone are apart: no edge leads to them.
_KEYS: dict[Space, frozenset[str]] = {
    "one": frozenset(),
    "relation": frozenset({"relation"}),
    "source": frozenset({"source"}),
    "target": frozenset({"target"}),
    "source_pair": frozenset({"source", "relation"}),
    "target_pair": frozenset({"target", "relation"}),
    "edge": frozenset({"source", "target", "relation", "edge"}),
}
_OF_KEYS = {keys: space for space, keys in _KEYS.items()}
_OF_NODES: tuple[Space, ...] = ("one", "node_type", "node")


def is_seen_from_edges(space: Space) -> bool:
    """Return whether every edge has a row in a space."""
    return space in _KEYS


def is_coarser(space: Space, other: Space) -> bool:
    """Return whether each row of ``other`` has one row of ``space``: a value of ``space`` can be read or kept there."""
    if space in _KEYS and other in _KEYS:
        return _KEYS[space] <= _KEYS[other]
    if space in _OF_NODES and other in _OF_NODES:
        return _OF_NODES.index(space) <= _OF_NODES.index(other)
    return False


def join(spaces: Iterable[Space]) -> Space:
    """Find the coarsest space for a function of values of these spaces; raise InputError for nodes mixed with edges."""
    given = [*dict.fromkeys(spaces)]
    if all(space in _KEYS for space in given):
        keys = frozenset().union(*(_KEYS[space] for space in given))
        return _OF_KEYS.get(keys, "edge")
    if all(space in _OF_NODES for space in given):
        return max(given, key=_OF_NODES.index)
    remedy = "Take node values to edges by edges.source(...) or edges.target(...) first."
    raise InputError("program", ", ".join(given), "mixes values of nodes with values of edges", remedy)
