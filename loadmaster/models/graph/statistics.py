"""Statistics of a graph that a plan needs: rows of every space, how uneven they are, and how often each is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from loadmaster.errors import InputError
from loadmaster.models.fields import READING, Bounds, Size
from loadmaster.models.graph.spaces import WEIGHT_SPACES, Space

_Counts = Annotated[tuple[Size, ...], Bounds(min_length=1, max_length=100_000)]
_Share = Annotated[float, Bounds(ge=0, le=1)]

# Shares of the rows at which the curve of accesses is kept: hot rows are few, so it is fine near 0.
HOT_SHARES: tuple[float, ...] = (0.0, *(2.0**-k for k in range(12, 3, -1)), *(k / 16 for k in range(2, 17)))


@dataclass(frozen=True)
class GraphStatistics:
    """Numbers of a graph.

    Attributes:
        edges, source_pairs, target_pairs: for each relation, its edges, and its different sources and targets.
        in_degrees, out_degrees: nodes of degree 0, 1, 2 to 3, 4 to 7, 8 to 15, ...
        longest: edges of one target, source, target and relation, source and relation, at the most; relations of one
            target, source.
        hits: the share of accesses that goes to the hottest rows of features, for each share in :data:`HOT_SHARES`.
    """

    edges: _Counts
    source_pairs: _Counts
    target_pairs: _Counts
    nodes: _Counts
    in_degrees: Annotated[tuple[Size, ...], Bounds(min_length=1, max_length=64)]
    out_degrees: Annotated[tuple[Size, ...], Bounds(min_length=1, max_length=64)]
    longest: tuple[Size, Size, Size, Size, Size, Size]
    hits: Annotated[tuple[_Share, ...], Bounds(min_length=len(HOT_SHARES), max_length=len(HOT_SHARES))]

    __pydantic_config__: ClassVar = READING

    def rows(self, space: Space) -> int:
        """Number of rows of a space."""
        if space == "one":
            return 1
        if space in ("relation", "node_type"):
            return len(self.edges if space == "relation" else self.nodes)
        return sum(self.by_type(space))

    def by_type(self, space: Space) -> tuple[int, ...]:
        """Number of rows by type: by relation for edges and pairs, by node type for nodes."""
        if space == "edge":
            return self.edges
        if space in ("source_pair", "target_pair"):
            return self.source_pairs if space == "source_pair" else self.target_pairs
        return self.nodes if space in ("node", "source", "target") else (self.rows(space),)

    def longest_row(self, over: Space, to: Space) -> int:
        """Largest number of rows of ``over`` that belong to one row of ``to``."""
        if over == to:
            return 1
        if to in WEIGHT_SPACES:
            return max(self.by_type(over)) if to != "one" else self.rows(over)
        if over == "edge":
            spaces: tuple[Space, ...] = ("target", "source", "target_pair", "source_pair")
            return self.longest[spaces.index(to)]
        return self.longest[4 if to == "target" else 5]


def expect_statistics(statistics: GraphStatistics) -> None:
    if not sum(statistics.nodes):
        raise InputError("statistics.nodes", 0, "are too few", "Give a graph with nodes.")
    if not sum(statistics.edges):
        raise InputError("statistics.edges", 0, "are too few", "Give a graph with edges.")
    for name in ("source_pairs", "target_pairs"):
        pairs = getattr(statistics, name)
        if len(pairs) != len(statistics.edges):
            raise InputError(f"statistics.{name}", len(pairs), "is not one for each relation", "Count all relations.")
        for r, (pair, edge) in enumerate(zip(pairs, statistics.edges, strict=True)):
            if pair > edge or (edge and not pair):
                remedy = "Count the different nodes of the relation's edges."
                raise InputError(f"statistics.{name}[{r}]", pair, f"does not go with {edge} edges", remedy)
    for name in ("in_degrees", "out_degrees"):
        if sum(getattr(statistics, name)) != sum(statistics.nodes):
            raise InputError(
                f"statistics.{name}", sum(getattr(statistics, name)), "are not all nodes", "Count every node once."
            )
    if any(b < a for a, b in zip(statistics.hits, statistics.hits[1:], strict=False)):
        raise InputError(
            "statistics.hits", list(statistics.hits), "do not rise", "Sort rows by frequency, hottest first."
        )


def statistics_of(
    source: ArrayLike,
    target: ArrayLike,
    relation: ArrayLike,
    node_type_counts: Sequence[int],
    relation_count: int | None = None,
    frequency: ArrayLike | None = None,
) -> GraphStatistics:
    """Count the statistics of a graph from its edges.

    Args:
        source, target, relation: [edges] of each edge, whole numbers.
        node_type_counts: nodes of each type; nodes are numbered type by type.
        relation_count: relations without edges included; by default as many as are named.
        frequency: [nodes] reads of each node's features; by default one for each edge that leaves it.

    Raises:
        InputError: no edges, arrays of different lengths, or edges that name no node or relation.
    """
    ends = [np.asarray(x) for x in (source, target, relation)]
    for name, x in zip(("source", "target", "relation"), ends, strict=True):
        if x.ndim != 1 or x.dtype.kind not in "iu" or len(x) != len(ends[0]):
            remedy = "Give one whole number for each edge."
            raise InputError(name, f"{x.dtype} {x.shape}", "is no list of numbers as long as the others", remedy)
    if not len(ends[0]):
        raise InputError("source", 0, "edges are too few", "Give a graph with edges.")
    nodes = sum(node_type_counts)
    relations = int(ends[2].max()) + 1 if relation_count is None else relation_count
    for name, x, bound in zip(("source", "target", "relation"), ends, (nodes, nodes, relations), strict=True):
        if int(x.min()) < 0 or int(x.max()) >= bound:
            wrong = int(x.min()) if int(x.min()) < 0 else int(x.max())
            raise InputError(name, wrong, "names nothing that there is", f"Numbers are 0 to {bound - 1}.")
    out_degree, in_degree = (np.bincount(x, minlength=nodes) for x in ends[:2])
    (source_pairs, *sources), (target_pairs, *targets) = (_pairs(x, ends[2], nodes, relations) for x in ends[:2])
    return counted(
        edges=np.bincount(ends[2], minlength=relations),
        source_pairs=source_pairs,
        target_pairs=target_pairs,
        node_type_counts=node_type_counts,
        in_degree=in_degree,
        out_degree=out_degree,
        longest_pairs=(targets[0], sources[0], targets[1], sources[1]),
        frequency=frequency,
    )


def counted(
    *,
    edges: NDArray[np.integer],
    source_pairs: NDArray[np.integer],
    target_pairs: NDArray[np.integer],
    node_type_counts: Sequence[int],
    in_degree: NDArray[np.integer],
    out_degree: NDArray[np.integer],
    longest_pairs: tuple[int, int, int, int],
    frequency: ArrayLike | None = None,
) -> GraphStatistics:
    """Make the statistics of a graph from counts by relation, [relations], and degrees, [nodes]. ``longest_pairs`` are
    the last four of :attr:`GraphStatistics.longest`; ``frequency`` is as for :func:`statistics_of`."""
    return GraphStatistics(
        edges=tuple(edges.tolist()),
        source_pairs=tuple(source_pairs.tolist()),
        target_pairs=tuple(target_pairs.tolist()),
        nodes=tuple(map(int, node_type_counts)),
        in_degrees=_buckets(in_degree),
        out_degrees=_buckets(out_degree),
        longest=(int(in_degree.max()), int(out_degree.max()), *longest_pairs),
        hits=_hits(out_degree if frequency is None else np.asarray(frequency, dtype=np.float64)),
    )


def _pairs(
    ends: NDArray[np.integer], relation: NDArray[np.integer], nodes: int, relations: int
) -> tuple[NDArray[np.integer], int, int]:
    """Count different nodes of each relation; also the most edges of one such pair, and most relations of a node."""
    keys = relation.astype(np.int64) * nodes + ends
    keys.sort()
    first = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
    longest = int(np.diff(np.r_[first, len(keys)]).max())
    kinds, of_nodes = np.divmod(keys[first], nodes)
    return np.bincount(kinds, minlength=relations), longest, int(np.bincount(of_nodes).max())


def _buckets(degree: NDArray[np.integer]) -> tuple[int, ...]:
    bucket = np.frexp(degree.astype(np.float64))[1]
    return tuple(np.bincount(bucket).tolist())


def _hits(frequency: NDArray[np.generic]) -> tuple[float, ...]:
    hottest = np.sort(frequency.astype(np.float64))[::-1]
    total = np.concatenate([[0.0], np.cumsum(hottest)])
    if total[-1] <= 0:
        return HOT_SHARES
    # Interpolate between rows: rounded to whole rows, the curve would not be concave everywhere.
    hits = np.interp(np.array(HOT_SHARES) * len(hottest), np.arange(len(total)), total / total[-1])
    return tuple(min(1.0, float(share)) for share in hits)
