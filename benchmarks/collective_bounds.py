"""Bounds of collectives compared: the value of every one on the reference cases and on a grid of machines.

Usage: python -m benchmarks.collective_bounds
A bound that is the largest on no row is not worth its time, and goes. ``alone``: rows on which no other bound is as
large; ``largest``: rows on which none is larger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product
from typing import Any, get_args

from benchmarks import record
from benchmarks.collective_reference import CASES
from loadmaster.models.collective.bounds import all_bounds
from loadmaster.models.collective.collectives import ROOTED, forms_of, instance_of, named_chunk_counts
from loadmaster.models.collective.problem import Collective, CollectiveProblem
from loadmaster.models.collective.proof import throughput_bound_ns
from loadmaster.models.topologies.presets import preset

MACHINES = (("dgx2", 1), ("dgx2", 2), ("hgx-h200", 1), ("hgx-h200", 2), ("ndv2", 2), ("ring", 8), ("torus", 16))
PIECES_BYTES = (1 << 8, 1 << 13, 1 << 20)


def problems() -> Iterator[CollectiveProblem]:
    """Yield the reference cases, then the grid; there any number of chunks is allowed."""
    yield from (case.problem() for case in CASES)
    for (name, nodes), collective, piece_bytes in product(MACHINES, get_args(Collective), PIECES_BYTES):
        if collective not in ("alltoallv", "custom"):
            machine, root = preset(name, nodes), 0 if collective in ROOTED else None
            title = f"{collective} {name} x {nodes}, pieces of {piece_bytes} bytes"
            yield CollectiveProblem(title, machine, collective, (piece_bytes * machine.rank_count,), root=root)


def rows() -> Iterator[dict[str, Any]]:
    """Yield every bound in us, per problem and form."""
    for problem in problems():
        counts, (size_bytes,) = named_chunk_counts(problem), problem.sizes_bytes
        for form in forms_of(problem):
            instance = instance_of(problem, size_bytes, (counts or (1,))[0], form)
            found = {"bandwidth": throughput_bound_ns(instance)}
            for bound in all_bounds(instance, divisible=not counts):
                found[bound.by] = max(bound.ns, found.get(bound.by, 0))
            yield {"problem": problem.name, "form": form, "bounds_us": {by: ns / 1e3 for by, ns in found.items()}}


def main() -> None:
    """Count which bounds are largest, print and record."""
    found, largest, alone = list(rows()), Counter[str](), Counter[str]()
    names: dict[str, None] = {}
    for row in found:
        best = max(row["bounds_us"].values())
        first = [by for by, us in row["bounds_us"].items() if us == best]
        names.update(dict.fromkeys(row["bounds_us"]))
        largest.update(first)
        alone.update(first if len(first) == 1 else ())
    wins = [{"bound": by, "alone": alone[by], "largest": largest[by]} for by in names]
    for win in sorted(wins, key=lambda w: (-int(str(w["alone"])), -int(str(w["largest"])))):
        print(win)
    print(record.write("collective_bounds", {"wins": wins, "rows": found}))


if __name__ == "__main__":
    main()
