"""Views of collective plans: words, pages, pictures, traces, and files of other runtimes."""

from __future__ import annotations

import json
from collections.abc import Mapping

from loadmaster.api.report.collective.pictures import pictures, plan_png
from loadmaster.api.report.collective.plan_page import plan_page, sections
from loadmaster.api.report.collective.trace import chrome_trace
from loadmaster.api.report.collective.view import View, view
from loadmaster.api.report.collective.words import details, infeasible, summary, verdict
from loadmaster.models.collective.exports.msccl import msccl_files
from loadmaster.models.collective.exports.mscclpp import mscclpp_files

__all__ = [
    "details",
    "html",
    "infeasible",
    "msccl",
    "mscclpp",
    "pictures",
    "png",
    "sections",
    "summary",
    "trace",
    "verdict",
    "view",
]


def html(seen: View) -> bytes:
    """The page that opens offline."""
    return plan_page(seen).encode()


def png(seen: View) -> bytes:
    """A PNG of time by size, and of who sends when."""
    return plan_png(seen)


def trace(seen: View) -> bytes:
    """The Chrome trace as JSON."""
    return json.dumps(chrome_trace(seen)).encode()


def msccl(seen: View, instances: int) -> Mapping[str, bytes]:
    """Files of MSCCL XML by name."""
    return _encoded(msccl_files(seen.problem, seen.plan, instances))


def mscclpp(seen: View, instances: int) -> Mapping[str, bytes]:
    """Files of MSCCL++ execution plans by name."""
    return _encoded(mscclpp_files(seen.problem, seen.plan, instances))


def _encoded(files: Mapping[str, str]) -> Mapping[str, bytes]:
    return {name: text.encode() for name, text in files.items()}
