"""OpenTelemetry spans: of requests, which FastAPI makes, and of jobs, in the trace of the request that submitted them.

Nothing is recorded while nobody has set up where spans go: the service does so when ``OTEL_EXPORTER_OTLP_ENDPOINT`` is
set (:func:`configure`), which takes the extra ``telemetry``. The other ``OTEL_*`` variables mean what they always mean.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from opentelemetry import propagate, trace

if TYPE_CHECKING:
    # Workers do without it.
    from fastapi.telemetry import TelemetryConfig

__all__ = ["configure", "of_requests", "record_job", "traceparent"]

_NAME, _HEADER = "loadmaster", "traceparent"
_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
# Asked every few seconds, and of no interest.
_UNTRACED = ("/livez", "/readyz", "/metrics")
_FOLDER = "/static/"
_PHASES = ("build", "solve", "check")


def configure() -> None:
    """Send the spans of this process to the collector of ``OTEL_EXPORTER_OTLP_ENDPOINT``, if it is set. Raises
    ModuleNotFoundError if it is set and the extra is missing."""
    if not os.environ.get(_ENDPOINT):
        return
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create({} if os.environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: _NAME})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


def of_requests() -> TelemetryConfig:
    """FastAPI's settings of telemetry: a span for each request, in the trace that its headers name. No metrics."""
    return {
        "metrics": False,
        "logs": False,
        "operation_spans": False,
        "auto_configure": False,
        "exclude": _is_untraced,
    }


def traceparent() -> str | None:
    """The current span as a job keeps it, so that the worker goes on in its trace."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier.get(_HEADER)


def record_job(
    submitted_in: str | None,
    attributes: Mapping[str, str | int],
    *,
    created_at: float,
    started_at: float,
    outcome: str,
    seconds: Mapping[str, float],
) -> None:
    """The spans of a job that has just ended: its wait in the queue, its run, and in that build, solve and check. A
    search goes back and forth between those three: their spans are as long as they took all in all, one after the
    other, up to the end.

    Args:
        submitted_in: what :func:`traceparent` gave for the request.
        created_at, started_at: in seconds since the epoch.
        outcome: how it ended; ``failed`` is an error.
        seconds: of build, solve and check; none where there is no plan.
    """
    ended_at = time.time()
    context = propagate.extract({} if submitted_in is None else {_HEADER: submitted_in})
    with _span("queue wait", context, created_at, started_at, attributes):
        pass
    with _span("plan", context, started_at, ended_at, {**attributes, "loadmaster.outcome": outcome}) as run:
        if outcome == "failed":
            run.set_status(trace.StatusCode.ERROR)
        at = ended_at - sum(seconds.get(phase, 0.0) for phase in _PHASES)
        within = trace.set_span_in_context(run)
        for phase in _PHASES:
            if phase in seconds:
                with _span(phase, within, at, at + seconds[phase], {}):
                    at += seconds[phase]


@contextlib.contextmanager
def _span(
    name: str, context: Any, started_at: float, ended_at: float, attributes: Mapping[str, str | int]
) -> Iterator[Any]:
    """A span with a beginning and an end in the past."""
    kind = trace.SpanKind.CONSUMER if name == "plan" else trace.SpanKind.INTERNAL
    begin, end = (int(moment * 1e9) for moment in (started_at, ended_at))
    span = trace.get_tracer(_NAME).start_span(name, context, kind=kind, attributes=dict(attributes), start_time=begin)
    yield span
    # A clock that was set back meanwhile would have it end before it began.
    span.end(max(begin, end))


def _is_untraced(scope: MutableMapping[str, Any]) -> bool:
    path = scope["path"]
    return path in _UNTRACED or path.startswith(_FOLDER)
