"""Spans of the service: a request, and its job in the same trace; none where nobody asks for them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fake_planner import SECONDS, problem
from fastapi import FastAPI

from loadmaster.api.worker.worker import Worker

pytest.importorskip("opentelemetry.sdk", reason="the extra telemetry is not installed")

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    """Where the spans of this process go; a process has one such place."""
    found = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(found))
    trace.set_tracer_provider(provider)
    return found


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> Iterator[InMemorySpanExporter]:
    """The same, empty."""
    exporter.clear()
    yield exporter
    exporter.clear()


def by_name(spans: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in spans.get_finished_spans()}


def length_s(span: ReadableSpan) -> float:
    assert span.start_time is not None and span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


def id_of(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.span_id


async def submitted(http: httpx.AsyncClient, behaviour: str = "quick") -> dict[str, Any]:
    answer = await http.post(
        "/v1/plans", json={"problem": problem(behaviour)}, headers={"traceparent": CALLER, "host": "localhost"}
    )
    assert answer.status_code == 202
    return dict(answer.json())


async def test_a_job_is_in_the_trace_of_its_request(
    http: httpx.AsyncClient, worker: Worker, spans: InMemorySpanExporter
) -> None:
    plan = await submitted(http)
    assert worker.work_once()
    found = by_name(spans)
    assert set(found) == {"POST /v1/plans", "queue wait", "plan", "build", "solve", "check"}
    assert {format(span.context.trace_id, "032x") for span in found.values() if span.context} == {CALLER.split("-")[1]}
    request, run = found["POST /v1/plans"], found["plan"]
    assert request.parent is not None and format(request.parent.span_id, "016x") == CALLER.split("-")[2]
    for name, above in {"queue wait": request, "plan": request, "build": run, "solve": run, "check": run}.items():
        parent = found[name].parent
        assert parent is not None and parent.span_id == id_of(above), name
    assert {name: length_s(found[name]) for name in SECONDS} == pytest.approx(SECONDS, abs=1e-6)
    assert found["check"].end_time == run.end_time
    assert found["queue wait"].end_time == run.start_time
    attributes = run.attributes or {}
    assert (attributes["loadmaster.job"], attributes["loadmaster.kind"]) == (plan["id"], "fake")
    assert attributes["loadmaster.outcome"] == "succeeded"
    assert (request.attributes or {})["http.response.status_code"] == 202


async def test_a_job_that_failed_is_marked(
    http: httpx.AsyncClient, worker: Worker, spans: InMemorySpanExporter
) -> None:
    await submitted(http, "solver_error")
    assert worker.work_once()
    found = by_name(spans)
    assert found["plan"].status.status_code is trace.StatusCode.ERROR
    assert "solve" not in found


async def test_requests_are_named_by_their_endpoint(http: httpx.AsyncClient, spans: InMemorySpanExporter) -> None:
    await http.get("/v1/plans/plan_1")
    await http.get("/nothing/at/all")
    await http.get("/livez")
    await http.get("/metrics")
    found = {span.name: span.attributes or {} for span in spans.get_finished_spans()}
    assert set(found) == {"GET /v1/plans/{plan_id}", "GET"}
    assert found["GET /v1/plans/{plan_id}"]["http.response.status_code"] == 404


async def test_a_bug_is_marked(app: FastAPI, http: httpx.AsyncClient, spans: InMemorySpanExporter) -> None:
    @app.get("/broken")
    async def broken() -> None:
        raise RuntimeError("a bug")

    assert (await http.get("/broken")).status_code == 500
    assert by_name(spans)["GET /broken"].status.status_code is trace.StatusCode.ERROR


@pytest.mark.parametrize("header", ["", "nonsense", "00-0-0-00", "00-" + "f" * 32 + "-" + "0" * 16 + "-01", "é"])
async def test_headers_that_name_no_trace(http: httpx.AsyncClient, spans: InMemorySpanExporter, header: str) -> None:
    answer = await http.get("/v1/plans", headers={"traceparent": header.encode()})
    assert answer.status_code == 200
    (span,) = spans.get_finished_spans()
    assert span.parent is None


def test_spans_go_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own, which has no other place for them."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    script = "\n".join(
        [
            "from loadmaster.api import telemetry",
            "from opentelemetry import trace",
            "telemetry.configure()",
            "print(type(trace.get_tracer_provider()).__name__)",
        ]
    )
    for endpoint, provider in {"": "ProxyTracerProvider", "http://127.0.0.1:9": "TracerProvider"}.items():
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert done.stdout.strip() == provider, done.stderr
