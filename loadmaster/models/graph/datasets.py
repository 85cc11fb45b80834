"""Synthetic graphs with the sizes of well-known data sets: those of [Wu24] Table 3.3.

Nodes and edges, node types and relations are the data sets' own. So are the compaction ratios (different pairs of
source and relation for each edge) of am and fb15k, published with Figure 3.11; that of mag follows from its four
relations and their sources. The others are chosen within the range of these. Every relation goes from one node type to
one; relations are of Zipf sizes; some nodes have many edges: the degree of the k-th busiest falls as its square root.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.errors import InputError

Ids = NDArray[np.int32]

# Largest share of a node type's nodes that are sources of one relation.
_MOST_OF_A_TYPE = 0.95


@dataclass(frozen=True)
class DataSet:
    """Sizes of a data set's graph: shares of nodes by type; pairs of source and relation for each edge (compaction)."""

    name: str
    nodes: int
    types: tuple[float, ...]
    edges: int
    relations: int
    compaction: float

    @property
    def node_type_counts(self) -> tuple[int, ...]:
        ends = np.rint(np.cumsum(self.types) / sum(self.types) * self.nodes).astype(int)
        return tuple(np.diff(np.r_[0, ends]).tolist())


def _falling(count: int) -> tuple[float, ...]:
    return tuple((k + 1) ** -0.5 for k in range(count))


DATA_SETS: dict[str, DataSet] = {
    found.name: found
    for found in (
        DataSet("aifb", 7_262, _falling(7), 48_810, 104, 0.55),
        DataSet("am", 1_885_136, _falling(7), 5_668_682, 108, 0.57),
        DataSet("bgs", 94_806, _falling(27), 672_884, 122, 0.44),
        DataSet("biokg", 93_773, _falling(5), 4_762_678, 51, 0.13),
        DataSet("fb15k", 14_541, (1.0,), 620_232, 474, 0.26),
        DataSet("mag", 1_939_743, (1_134_649, 736_389, 59_965, 8_740), 21_111_007, 4, 0.15),
        DataSet("mutag", 27_163, _falling(5), 148_100, 50, 0.6),
        DataSet("wikikg2", 2_500_604, (1.0,), 16_109_182, 535, 0.6),
    )
}


def data_set(name: str) -> DataSet:
    """Return the sizes of a data set by its name."""
    if name not in DATA_SETS:
        raise InputError("dataset", name, "is no data set that is known", f"Choose one of: {', '.join(DATA_SETS)}.")
    return DATA_SETS[name]


def generated(name: str, seed: int = 0) -> tuple[Ids, Ids, Ids]:
    """Generate a graph of a data set's sizes: source, target and relation of every edge, [edges] each, by seed.

    Nodes are numbered type by type; edges are sorted by relation.
    """
    of = data_set(name)
    rng = np.random.default_rng([seed, *name.encode()])
    counts = np.array(of.node_type_counts)
    first = np.concatenate([[0], np.cumsum(counts)])
    # Types are listed by size: sources are of the larger half of them.
    numbers = np.arange(of.relations)
    from_type = numbers % ((len(counts) + 1) // 2)
    to_type = (numbers // 2 + 1) % len(counts)
    edges = _zipf(of.edges, of.relations)
    pairs = _filled(of, edges, np.maximum(1, (_MOST_OF_A_TYPE * counts[from_type]).astype(np.int64)))
    source, target = np.empty(of.edges, dtype=np.int32), np.empty(of.edges, dtype=np.int32)
    at = 0
    for r in range(of.relations):
        here = slice(at, at + int(edges[r]))
        source[here] = first[from_type[r]] + _sources(rng, int(edges[r]), int(pairs[r]), int(counts[from_type[r]]))
        nodes = int(counts[to_type[r]])
        target[here] = first[to_type[r]] + _scattered(rng, _square(rng, int(edges[r]), nodes), nodes)
        at += int(edges[r])
    return source, target, np.repeat(numbers.astype(np.int32), edges)


def _zipf(edges: int, relations: int) -> NDArray[np.int64]:
    """Edges of each relation: the k-th has 1/sqrt(k) of the first for few relations, 1/k for many."""
    share = (1.0 + np.arange(relations)) ** (-1.0 if relations > 16 else -0.5)
    found: NDArray[np.int64] = np.maximum(1, np.floor(share / share.sum() * edges)).astype(np.int64)
    found[0] += edges - int(found.sum())
    return found


def _filled(of: DataSet, edges: NDArray[np.int64], most: NDArray[np.int64]) -> NDArray[np.int64]:
    """Different sources of each relation: in proportion to its edges, but never more than it can have."""
    cap = np.minimum(edges, most)
    wanted = of.compaction * of.edges
    low, high = 0.0, 1.0
    for _ in range(60):
        share = (low + high) / 2
        low, high = (share, high) if np.minimum(cap, share * edges).sum() < wanted else (low, share)
    found: NDArray[np.int64] = np.maximum(1, np.minimum(cap, np.rint(high * edges))).astype(np.int64)
    return found


def _sources(rng: np.random.Generator, edges: int, pairs: int, nodes: int) -> Ids:
    """Sources of a relation's edges: ``pairs`` different nodes, each at least once, some of them many times."""
    chosen = _scattered(rng, np.arange(pairs), nodes)
    again = chosen[_square(rng, edges - pairs, pairs)]
    found = np.concatenate([chosen, again])
    rng.shuffle(found)
    return found


def _square(rng: np.random.Generator, count: int, among: int) -> Ids:
    """Random numbers below ``among``, small ones more often."""
    found: Ids = (np.square(rng.random(count, dtype=np.float32)) * among).astype(np.int32)
    return np.minimum(found, among - 1)


def _scattered(rng: np.random.Generator, numbers: NDArray[np.integer], nodes: int) -> Ids:
    """Permute numbers below ``nodes``, so that busy nodes are not neighbours in memory."""
    step = int(rng.integers(nodes // 2, nodes)) | 1 if nodes > 2 else 1
    while np.gcd(step, nodes) != 1:
        step += 2
    return ((numbers.astype(np.int64) * step + int(rng.integers(nodes))) % nodes).astype(np.int32)
