"""Views of collective plans: words, pages, pictures, traces, and files of other runtimes."""

from __future__ import annotations

from collections.abc import Mapping

from loadmaster.api.report.collective.pictures import pictures, png
from loadmaster.api.report.collective.plan_page import plan_page, sections
from loadmaster.api.report.collective.trace import chrome_trace
from loadmaster.api.report.collective.view import CollectiveView, view
from loadmaster.api.report.collective.words import details, infeasible, summary, verdict
from loadmaster.api.report.views import html, trace
from loadmaster.models.collective.exports.msccl import msccl_files
from loadmaster.models.collective.exports.mscclpp import mscclpp_files

__all__ = [
    "chrome_trace",
    "details",
    "html",
    "infeasible",
    "msccl",
    "mscclpp",
    "pictures",
    "plan_page",
    "png",
    "sections",
    "summary",
    "trace",
    "verdict",
    "view",
]


def msccl(seen: CollectiveView, instances: int) -> Mapping[str, bytes]:
    """Files of MSCCL XML by name."""
    return _encoded(msccl_files(seen.problem, seen.plan, instances))


def mscclpp(seen: CollectiveView, instances: int) -> Mapping[str, bytes]:
    """Files of MSCCL++ execution plans by name."""
    return _encoded(mscclpp_files(seen.problem, seen.plan, instances))


def _encoded(files: Mapping[str, str]) -> Mapping[str, bytes]:
    return {name: text.encode() for name, text in files.items()}
