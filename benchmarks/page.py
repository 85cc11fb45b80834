"""Writes ``docs/benchmarks.md`` and its plots from ``benchmarks/results/``.

    python -m benchmarks.page

A story for each kind: what was compared, a plot, a table of at most six columns, and what was not reached. Every
figure comes from the results, also those in sentences; a test holds the page against them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from benchmarks.drawing import Result
from benchmarks.page_gpus import collectives, partition
from benchmarks.page_graph import graph_networks
from benchmarks.page_index import index, service
from benchmarks.page_memory import memory, placement
from benchmarks.page_training import training
from benchmarks.plots import write_all

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
_INTRODUCTION = """# Benchmarks

What was measured for each kind of problem, compared with what, and what was not reached. `python -m benchmarks.page`
writes this page from [benchmarks/results](../benchmarks/results). Each file there has all rows with their spread, the
command, the machine and the versions. [benchmarks/README.md](../benchmarks/README.md) says how to repeat a run. Rivals
ran on the same kind of machine, and in the same run where no sentence says otherwise.
"""


def load() -> dict[str, Result]:
    """Read all recorded results by name."""
    found = (json.loads(path.read_text("utf-8")) for path in sorted((ROOT / "benchmarks" / "results").glob("*.json")))
    return {str(result["benchmark"]): result for result in found}


def render(results: Mapping[str, Result]) -> str:
    """Write the text of the page."""
    stories = (memory, placement, training, partition, graph_networks, collectives, index, service)
    return "\n".join([_INTRODUCTION, *(part for story in stories for part in story(results))])


def main() -> None:
    """Write ``docs/benchmarks.md`` and its plots."""
    results = load()
    PAGE.write_text(render(results), "utf-8")
    for path in [PAGE, *write_all(results)]:
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
