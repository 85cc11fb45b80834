"""Views of collective plans: words, pages, pictures, traces, and files of other runtimes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from loadmaster.api.report.collective.pictures import pictures, png
from loadmaster.api.report.collective.plan_page import plan_page, sections
from loadmaster.api.report.collective.timeline import describe
from loadmaster.api.report.collective.view import CollectiveView, view
from loadmaster.api.report.collective.words import details, infeasible, summary, verdict
from loadmaster.models.collective.collectives import chunks_of
from loadmaster.models.collective.exports.msccl import msccl_files
from loadmaster.models.collective.exports.mscclpp import mscclpp_files
from loadmaster.models.collective.plan import Algorithm
from loadmaster.models.collective.verdict import CollectiveCheck
from loadmaster.models.units import show_bytes

__all__ = [
    "chrome_trace",
    "details",
    "infeasible",
    "msccl",
    "mscclpp",
    "pictures",
    "plan_page",
    "png",
    "sections",
    "summary",
    "verdict",
    "view",
]


def chrome_trace(view: CollectiveView) -> dict[str, Any]:
    """The trace document: one event for every send, for as long as it holds its link."""
    events: list[dict[str, Any]] = []
    for process, (algorithm, check) in enumerate(zip(view.plan.algorithms, view.check.algorithms, strict=True)):
        events += _events(view, process, algorithm, check)
    return {
        "displayTimeUnit": "ns",
        "traceEvents": events,
        "otherData": {"problem_sha256": view.plan.problem_sha256, "problem": view.problem.title or view.problem.name},
    }


def _events(
    view: CollectiveView, process: int, algorithm: Algorithm, check: CollectiveCheck
) -> Iterator[dict[str, Any]]:
    topology = check.topology
    chunks = chunks_of(view.problem, algorithm.size_bytes, algorithm.chunk_count, algorithm.form)
    title = f"{show_bytes(algorithm.size_bytes)}, {algorithm.chunk_count} chunks, {algorithm.form}"
    yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": title}}
    yield {"ph": "M", "name": "process_sort_index", "pid": process, "args": {"sort_index": process}}
    used = sorted(check.by_link, key=lambda k: (topology.links[k].source, topology.links[k].target))
    for row, index in enumerate(used):
        link = topology.links[index]
        held = ", ".join(topology.resources[r] for r in link.resources)
        name = f"{link.source} -> {link.target} ({held})"
        yield {"ph": "M", "name": "thread_name", "pid": process, "tid": row, "args": {"name": name}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": process, "tid": row, "args": {"sort_index": row}}
        for journey in check.by_link[index]:
            send = journey.send
            yield {
                "ph": "X",
                "name": describe(journey, chunks),
                "cat": "adds" if send.combines else "copies",
                "pid": process,
                "tid": row,
                "ts": send.start_ns / 1e3,
                "dur": (journey.busy_until_ns - send.start_ns) / 1e3,
                "args": {
                    "chunks": list(send.chunks),
                    "bytes": sum(chunks[c].size_bytes for c in send.chunks),
                    "arrives_us": journey.arrives_ns / 1e3,
                },
            }


def msccl(seen: CollectiveView, instances: int) -> Mapping[str, bytes]:
    """Files of MSCCL XML by name."""
    return _encoded(msccl_files(seen.problem, seen.plan, instances))


def mscclpp(seen: CollectiveView, instances: int) -> Mapping[str, bytes]:
    """Files of MSCCL++ execution plans by name."""
    return _encoded(mscclpp_files(seen.problem, seen.plan, instances))


def _encoded(files: Mapping[str, str]) -> Mapping[str, bytes]:
    return {name: text.encode() for name, text in files.items()}
