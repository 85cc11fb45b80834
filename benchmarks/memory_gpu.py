"""The figures of memory planning on one GPU, in one command that can be cut short and continued.

    python benchmarks/memory_gpu.py --out DIR                    everything, on a GPU host with the solvers
    python benchmarks/memory_gpu.py --out DIR --figures 1 5 --cases resnet50 --wall 560
    python benchmarks/memory_gpu.py --out DIR --report           only the figures, from DIR/rows.json
    python benchmarks/memory_gpu.py --out DIR --device cpu --small    a trial with small models

Figures: 1 plans against torch.compile's activation_memory_budget and checkpointing; 2 a sweep of budgets; 3 memory at
10 % overhead; 4 ablation; 5 what a budget above the peak costs, and how long capturing and planning takes. A step is
forward and backward, gradients dropped before it; no optimizer. Rows are in DIR/rows.json after each; rows that failed
are measured again by the next run, rows that are there are not.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.gpu import budgets, figures, scheduler  # noqa: E402
from benchmarks.gpu.cases import CASES  # noqa: E402

# Of the GPU's memory, what rows may share.
MEMORY_SHARE = 0.92
# What a row takes from its start to its first step.
START_MARGIN_S = 75.0


def memory_gib(device: str) -> float:
    """What rows may take together."""
    import torch

    if device != "cuda":
        return 1e9
    return MEMORY_SHARE * torch.cuda.get_device_properties(0).total_memory / 2**30


def main() -> None:
    """Measure what is missing, and report."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", type=Path, required=True, help="folder for rows and costs; kept from run to run")
    p.add_argument("--figures", nargs="+", type=int, default=[1, 2, 3, 4, 5], choices=range(1, 6))
    p.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    p.add_argument("--wall", type=float, default=3600.0, help="seconds; what is ready then is measured and written")
    p.add_argument("--jobs", type=int, default=8, help="rows that compile at once")
    p.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    p.add_argument("--small", action="store_true", help="small models, to try the benchmark itself")
    p.add_argument("--report", action="store_true", help="measure nothing")
    a = p.parse_args()
    began = time.monotonic()
    a.out.mkdir(parents=True, exist_ok=True)
    record = a.out / "rows.json"
    rows: list[dict[str, Any]] = json.loads(record.read_text()) if record.exists() else []

    def note() -> None:
        part = record.with_suffix(".part")
        part.write_text(json.dumps(rows, indent=1))
        part.replace(record)

    if not a.report:
        order = {"device": a.device, "folder": str(a.out.resolve()), "small": a.small}
        margin_s = 15.0 if a.small else START_MARGIN_S
        limits = scheduler.Limits(a.wall - (time.monotonic() - began), margin_s, a.jobs, memory_gib(a.device))
        scheduler.Scheduler(budgets.wanted(a.figures, a.cases, small=a.small), rows, limits, order, note).run()
    found = figures.all_figures(rows)
    print(figures.as_text(found))
    if a.device == "cuda" and not a.report:
        from benchmarks.record import write

        print(write("memory_gpu", {**figures.NOTES, **found}))


if __name__ == "__main__":
    main()
