"""Counts of the whole store, for /metrics and /readyz."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from loadmaster.api.store import schema
from loadmaster.api.store.database import Database

__all__ = ["Figures", "Histogram", "read"]


@dataclass(frozen=True)
class Histogram:
    """Cumulative buckets (upper limit, count), and the sum of the values."""

    buckets: list[tuple[str, float]]
    total: float


@dataclass(frozen=True)
class Figures:
    """Jobs by state, workers alive, and the counters kept since the database was created."""

    jobs: Mapping[str, int]
    workers: int
    cache_hits: float
    histograms: Mapping[str, Histogram]


def read(database: Database) -> Figures:
    """All figures, from one state of the store."""
    with database.read() as connection:
        states = connection.execute(sa.select(schema.job.c.state, sa.func.count()).group_by(schema.job.c.state))
        jobs = {state: number for state, number in states}
        # Those that fell silent are forgotten: see the queue.
        workers = connection.execute(sa.select(sa.func.count()).select_from(schema.worker)).scalar_one()
        columns = schema.tally.c
        tallies = {
            (metric, bucket): value
            for metric, bucket, value in connection.execute(sa.select(columns.metric, columns.bucket, columns.value))
        }
    return Figures(
        jobs=jobs,
        workers=workers,
        cache_hits=tallies[schema.CACHE_HITS, "count"],
        histograms={
            metric: Histogram([(b, tallies[metric, b]) for b in buckets], tallies[metric, "sum"])
            for metric, buckets in schema.HISTOGRAMS.items()
        },
    )
