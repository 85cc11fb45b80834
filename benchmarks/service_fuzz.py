"""Service under requests that nobody would write: from its own description (schemathesis), and spoilt problems.

Ends with status 1 when an answer is an error of the server, a refusal names no place, or nothing comes within a minute.

    python -m benchmarks.service_fuzz
"""

from __future__ import annotations

import argparse
import collections
import json
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import record
from loadmaster.api.settings import Settings
from tests.api.fuzzing import preset_problems, send_described, send_spoilt
from tests.api.running_service import RunningService


def measured(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Send requests to a service of its own; return counts of what was sent and what came back."""
    problems = preset_problems(folder)
    service = RunningService(Settings(database_url=f"sqlite:///{folder}/service.db", port=0, workers=0))
    try:
        began = time.monotonic()
        described = send_described(service.url, problems[0], options.examples, options.seed)
        between = time.monotonic()
        spoilt = send_spoilt(service.url, problems, options.documents, options.seed)
        ended = time.monotonic()
    finally:
        service.stop()
    statuses = sum((outcome.statuses for outcome in described.values()), collections.Counter[int]())
    return {
        "asked": {"examples": options.examples, "documents": options.documents, "seed": options.seed},
        "from_the_description": {
            "requests": sum(outcome.asked for outcome in described.values()),
            "operations": len({name.rpartition(" (")[0] for name in described}),
            "statuses": dict(sorted(statuses.items())),
            "wrong": {name: outcome.wrong for name, outcome in described.items() if outcome.wrong},
            "seconds": round(between - began, 1),
        },
        "spoilt_problems": {
            **asdict(spoilt),
            "statuses": dict(sorted(spoilt.statuses.items())),
            "seconds": round(ended - between, 1),
        },
    }


def main() -> int:
    """Send, record and print; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=400, help="of each operation, good ones and bad ones each")
    parser.add_argument("--documents", type=int, default=10_000, help="spoilt ones")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measured(options, Path(folder))
    versions = record.versions("schemathesis", "hypothesis", "fastapi", "pydantic")
    path = record.write("service_fuzz", {"versions": versions, **found})
    print(json.dumps(found, indent=2))
    print(path)
    return 1 if found["from_the_description"]["wrong"] or found["spoilt_problems"]["wrong"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
