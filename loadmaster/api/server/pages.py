"""The page at ``/``: the latest plans as plain HTML, for a person with a browser."""

from __future__ import annotations

import html
import time

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from loadmaster.api.server.context import ServiceDep
from loadmaster.api.server.resources import exports_of, limit_document
from loadmaster.api.server.security import PAGE_HEADERS
from loadmaster.api.store.records import Job
from loadmaster.models.units import show_cost, show_limit, show_share

router = APIRouter(include_in_schema=False)

_SHOWN = 100
_REFRESH_S = 5
_HEADERS = {**PAGE_HEADERS, "Cache-Control": "no-store"}
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="refresh" content="{refresh}">
<title>Loadmaster</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }}
table {{ border-collapse: collapse; width: 100%; }}
th, td {{ text-align: left; padding: .35rem .8rem .35rem 0; border-bottom: 1px solid #8884; }}
td.n, th.n {{ text-align: right; font-variant-numeric: tabular-nums; }}
code {{ font-size: .9em; }}
</style>
</head>
<body>
<h1>Loadmaster</h1>
<p><a href="/openapi.json">Interface</a> · <a href="/metrics">metrics</a> · <a href="/readyz">health</a></p>
<table>
<thead><tr><th>Plan</th><th>Kind</th><th>Problem</th><th>State</th><th class="n">Limit</th><th class="n">Objective</th>
<th class="n">Gap</th><th class="n">Seconds</th><th></th></tr></thead>
<tbody>
{rows}
</tbody>
</table>
{nothing}
</body>
</html>
"""


@router.get("/", response_class=HTMLResponse)
def front_page(service: ServiceDep) -> HTMLResponse:
    """The latest plans."""
    jobs = service.jobs.latest(limit=_SHOWN)
    nothing = "" if jobs else "<p>No plans yet. Submit one with <code>loadmaster submit PROBLEM.json</code>.</p>"
    rows = "\n".join(_row(job) for job in jobs)
    return HTMLResponse(_PAGE.format(refresh=_REFRESH_S, rows=rows, nothing=nothing), headers=_HEADERS)


def _row(job: Job) -> str:
    address = f"/v1/plans/{job.id}"
    link = f'<a href="{address}/result">plan</a>' if job.plan_sha256 is not None else ""
    link += "".join(f' <a href="{href}">{html.escape(name)}</a>' for name, href in exports_of(job).items())
    state = f"{job.state}{' (cached)' if job.cached else ''}"
    cells = [
        f'<td><a href="{address}"><code>{html.escape(job.id)}</code></a></td>',
        f"<td>{html.escape(job.kind)}</td>",
        f"<td>{html.escape(job.name)}</td>",
        f"<td>{state}</td>",
        f'<td class="n">{_limit(job)}</td>',
        f'<td class="n">{_objective(job)}</td>',
        f'<td class="n">{"" if job.gap is None else show_share(job.gap)}</td>',
        f'<td class="n">{_seconds(job)}</td>',
        f'<td>{link} <a href="{address}/log">log</a></td>',
    ]
    return "<tr>" + "".join(cells) + "</tr>"


def _limit(job: Job) -> str:
    limit = limit_document(job.kind, job.limit)
    return "" if limit is None else html.escape(show_limit(limit.value, limit.unit))


def _objective(job: Job) -> str:
    return "" if job.objective is None else html.escape(show_cost(job.objective, job.unit or ""))


def _seconds(job: Job) -> str:
    if job.started_at is None:
        return ""
    return f"{(job.finished_at or time.time()) - job.started_at:.1f}"
