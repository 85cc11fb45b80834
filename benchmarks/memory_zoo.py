"""Models of transformers, timm, torchvision and diffusers, called as their documentation calls them, on a CPU.

    python -m benchmarks.memory_zoo --out DIR [--only timm/densenet121 ...] [--backend inductor]

Each is captured, planned at shares of its peak and just above its least, applied, and compared with plain PyTorch. Each
is a process of its own with a limit, so that the crash of one ends nothing. Rows are in DIR after each, with the
machine and the versions that they were measured with; a run goes on from them (`--fresh` begins again).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import record
from benchmarks.zoo.entries import LIBRARIES, of_library
from benchmarks.zoo.measure import LEAST_SHARE, PLAN_LIMIT_S, measure_one, run_alone

LIMIT_S = 900


def measured(name: str, backend: str, path: Path) -> dict[str, Any]:
    """Measure one model; its row, with what ended it early if anything did."""
    common = ["benchmarks.zoo.measure", *(f"benchmarks.zoo.{lib}_models" for lib in LIBRARIES)]
    ended = run_alone(measure_one, (name, backend, path), LIMIT_S, common)
    library, _, model = name.partition("/")
    row = json.loads(path.read_text()) if path.exists() else {"model": model, "library": library, "budgets": []}
    if ended is not None:
        record.write_whole(path, json.dumps(row := {**row, "ended": ended}))
    return dict(row)


def names() -> list[str]:
    """List all models of the libraries that are installed, as ``LIBRARY/MODEL``."""
    return [f"{library}/{e.name}" for library in LIBRARIES for e in of_library(library)]


def shown(row: dict[str, Any]) -> str:
    """Format one row in a line."""
    budgets = ", ".join(f"{b['budget']} {b.get('status')} gap {b.get('gap')}" for b in row["budgets"])
    return f"{row['library']}/{row['model']}: {row.get('refused') or row.get('ended') or budgets}"


def run(wanted: Sequence[str], backend: str, folder: Path, *, fresh: bool) -> list[dict[str, Any]]:
    """Measure the rows of some models, one after another."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in wanted:
        path = folder / f"{name.replace('/', '-')}-{backend}.json"
        if fresh:
            path.unlink(missing_ok=True)
        rows.append(json.loads(path.read_text()) if path.exists() else measured(name, backend, path))
        print(shown(rows[-1]), flush=True)
    return rows


def main() -> None:
    """Measure what is missing, and report."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", type=Path, required=True, help="folder for rows and problems; kept from run to run")
    p.add_argument("--only", nargs="+", metavar="LIBRARY/MODEL", help="measure these, and record nothing")
    p.add_argument("--backend", choices=("eager", "inductor"), default="eager")
    p.add_argument("--fresh", action="store_true", help="begin with no rows")
    a = p.parse_args()
    rows = run(a.only or names(), a.backend, a.out, fresh=a.fresh)
    if a.only is None:
        record.write("memory_zoo", {"plan_limit_s": PLAN_LIMIT_S, "least_gradient_share": LEAST_SHARE, "models": rows})


if __name__ == "__main__":
    main()
