"""Random plans of small models of many sorts, run on 2 and on 2 x 2 processes over gloo, in float64.

Usage: python -m benchmarks.partition_fuzz

For every plan three steps of AdamW: the loss and every gradient within 1e-10 of one device, parameters within 1e-9, and
as many collectives as were predicted. The check is that of the tests, with more plans.
"""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks import record
from tests.executor.partition.models import MADE
from tests.executor.partition.step_scenarios import STEPS, trains_alike
from tests.executor.worlds import reports

PLANS = 50
MESHES = {"2": (2,), "2x2": (2, 2)}


def main() -> None:
    """Run every model on every mesh, each in processes of its own."""
    rows = []
    for mesh, sizes in MESHES.items():
        for name in MADE:
            began = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                said = reports({name: partial(trains_alike, name, PLANS, sizes)}, Path(folder), 2 ** len(sizes))[name]
            wrong = [one for one in said if one]
            row = {"model": name, "mesh": mesh, "plans": PLANS, "steps": STEPS, "ok": not wrong}
            rows.append(row | {"seconds": round(time.monotonic() - began, 1)})
            print(rows[-1], *wrong[:1], flush=True)
    print(record.write("partition_fuzz", {"rows": rows}))


if __name__ == "__main__":
    main()
