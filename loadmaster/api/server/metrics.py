"""``/metrics`` for Prometheus: read from the store at every scrape, so that one server tells of all workers, and
nothing is lost at a restart."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from loadmaster.api.server.context import ServiceDep
from loadmaster.api.store import figures
from loadmaster.api.store.database import Database
from loadmaster.api.store.records import State

router = APIRouter(tags=["operations"])

_HELP = {
    "solve_seconds": "Wall seconds from the start of a job to its plan",
    "gap_at_stop": "Proved relative gap of finished plans",
}


class StoreCollector(Collector):
    """The figures of the store as metrics."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics, from one state of the store."""
        found = figures.read(self._database)
        by_state = GaugeMetricFamily("loadmaster_jobs", "Jobs by state", labels=["state"])
        for state in State:
            by_state.add_metric([state.value], found.jobs.get(state.value, 0))
        yield by_state
        queued = found.jobs.get(State.QUEUED.value, 0)
        yield GaugeMetricFamily("loadmaster_queue_depth", "Jobs waiting for a worker", value=queued)
        yield GaugeMetricFamily("loadmaster_workers", "Workers alive", value=found.workers)
        yield CounterMetricFamily("loadmaster_cache_hits", "Jobs answered from the cache", value=found.cache_hits)
        for name, histogram in found.histograms.items():
            yield HistogramMetricFamily(
                f"loadmaster_{name}", _HELP[name], buckets=histogram.buckets, sum_value=histogram.total
            )


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
def metrics(service: ServiceDep) -> Response:
    """Metrics in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(StoreCollector(service.database))
    ProcessCollector(registry=registry)
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
