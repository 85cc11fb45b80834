"""Drift of work away from what a plan was made for: how far it is from that, and the problem that it makes.

What an operation comes to under the new work is predicted, and corrected by what is known of the old: a candidate that
took 1.2 times what was predicted for the old work is expected to take 1.2 times what is predicted for the new.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from loadmaster.models.index.configuration import Configuration
from loadmaster.models.index.features import Features
from loadmaster.models.index.predictor import predict, shipped
from loadmaster.models.index.problem import Cost, Figure, IndexProblem, Operations, Shard

_SORTS = tuple(field.name for field in fields(Operations))


def drift(planned: Sequence[Operations], seen: Sequence[Operations]) -> float:
    """The share of operations, 0 to 1, that would have to go to another shard or be of another sort to be as planned:
    total variation distance of the distributions over shards and sorts. Work without operations is as planned."""
    before, after = _shares(planned), _shares(seen)
    if not before or not after:
        return 0.0
    return sum(abs(a - b) for a, b in zip(before, after, strict=True)) / 2


def _shares(of: Sequence[Operations]) -> list[float]:
    counts = [getattr(one, sort) for one in of for sort in _SORTS]
    total = sum(counts)
    return [count / total for count in counts] if total else []


def added(a: Sequence[Operations], b: Sequence[Operations], sign: int = 1) -> list[Operations]:
    """Add two sequences of operations shard by shard; with ``sign`` -1, take the second from the first."""
    return [
        Operations(*(getattr(x, sort) + sign * getattr(y, sort) for sort in _SORTS)) for x, y in zip(a, b, strict=True)
    ]


def with_work(
    problem: IndexProblem, seen: Sequence[Operations], keys: Sequence[int], current: Sequence[int]
) -> IndexProblem:
    """The problem of shards that are built already, under other work: each shard's operations seen (the horizon over
    which a rebuild has to pay), the keys that it holds now, and the candidate that it is built as."""
    shards = [
        replace(
            shard,
            keys=held,
            operations=operations,
            costs=tuple(
                None if cost is None else _cost(shard, cost, configuration, operations, held)
                for cost, configuration in zip(shard.costs, problem.candidates, strict=True)
            ),
            current=candidate,
            features=None if shard.features is None else _features(shard.features, operations, held),
        )
        for shard, operations, held, candidate in zip(problem.shards, seen, keys, current, strict=True)
    ]
    return replace(problem, shards=tuple(shards))


def _features(old: Features, operations: Operations, keys: int) -> Features:
    """Features of the new work: keys stay as hard and lookups as skewed, since counts tell neither."""
    return replace(old, keys=keys, **{sort: getattr(operations, sort) for sort in _SORTS})


def _cost(shard: Shard, known: Cost, configuration: Configuration, operations: Operations, keys: int) -> Cost:
    if shard.features is None:
        # Nothing to predict from: an operation takes what it took, bytes and rebuilds grow with the keys.
        growth = (keys + operations.inserts) / max(shard.keys + shard.operations.inserts, 1)
        peak, rebuild_us = _times(known.peak_bytes, growth), known.rebuild_us * keys / max(shard.keys, 1)
        return replace(known, peak_bytes=peak, rebuild_us=rebuild_us, measured=False)
    before = predict(shard.features, configuration, shipped())
    now = predict(_features(shard.features, operations, keys), configuration, shipped())
    return Cost(
        read_ns=_corrected(now.read_ns, known.read_ns, before.read_ns),
        peak_bytes=_corrected(now.peak_bytes, known.peak_bytes, before.peak_bytes),
        write_ns=None if now.write_ns is None else _corrected(now.write_ns, known.write_ns, before.write_ns),
        rebuild_us=now.rebuild_us * (known.rebuild_us / before.rebuild_us if before.rebuild_us else 1.0),
        pause_us=now.pause_us,
        scan_ns=known.scan_ns,
    )


def _corrected(now: Figure, known: Figure | None, predicted: Figure | None) -> Figure:
    if known is None or predicted is None or not predicted.expected:
        return now
    return _times(now, known.expected / predicted.expected)


def _times(figure: Figure, factor: float) -> Figure:
    return Figure(*(None if x is None else x * factor for x in (figure.expected, figure.lower, figure.upper)))  # type: ignore[arg-type]
