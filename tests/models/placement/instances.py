"""Small placement problems, random and by hand."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from loadmaster.models.placement.accesses import Accesses, Gap
from loadmaster.models.placement.plan import Absence, Moves, Store
from loadmaster.models.placement.problem import Block, Operator, PlacementProblem, Tier

# 1 GB/s is 1000 bytes per microsecond: sizes in this unit take whole microseconds.
UNIT = 1000


def host(gbps: float = 1.0, **more: float) -> Tier:
    return Tier("host", gbps, gbps, **more)  # type: ignore[arg-type]


def problem(operators: list[Operator], sizes: list[int], *tiers: Tier, name: str = "small") -> PlacementProblem:
    """Blocks a, b, c... of that many units."""
    blocks = tuple(Block(chr(ord("a") + n), size * UNIT) for n, size in enumerate(sizes))
    return PlacementProblem(name, tuple(operators), blocks, tiers or (host(),))


def random_problem(seed: int, operators: int = 5, blocks: int = 4, tiers: int = 1) -> PlacementProblem:
    """Operators of 1 to 5 us that read and write one or two blocks each; every block is used."""
    rng = random.Random(seed)
    uses: list[tuple[set[int], set[int]]] = [(set(), set()) for _ in range(operators)]
    for block in range(blocks):
        for i in rng.sample(range(operators), rng.choice((1, 2, 2, 3))):
            reads, writes = uses[i]
            how = rng.choice(("read", "read", "write", "both"))
            if how != "write":
                reads.add(block)
            if how != "read":
                writes.add(block)
    made = [
        Operator(f"op{i}", float(rng.randint(1, 5)), tuple(sorted(reads)), tuple(sorted(writes)))
        for i, (reads, writes) in enumerate(uses)
    ]
    sizes = [rng.randint(1, 4) for _ in range(blocks)]
    speeds = [host(1.0, latency_us=0.5), Tier("disk", 0.5, 0.8)]
    return problem(made, sizes, *speeds[:tiers], name=f"random-{seed}")


def budgets(problem: PlacementProblem) -> list[int]:
    """From the least that has a plan to just below the peak."""
    accesses = Accesses(problem)
    low, high = int(accesses.needed_bytes.max()), int(accesses.live_bytes.max())
    return list(range(low, high, UNIT))


def all_moves(problem: PlacementProblem) -> Iterator[Moves]:
    """Every way to move blocks of a tiny problem with one tier: each gap's absence, or none; each store's operator; all
    orders of what is queued at one operator."""
    accesses = Accesses(problem)
    n = accesses.count
    for absences in itertools.product(*(_absences(gap, n) for gap in accesses.gaps)):
        stores: dict[tuple[int, int | None], tuple[int, int]] = {}
        for gap, absence in zip(accesses.gaps, absences, strict=True):
            if absence is None or gap.written is None:
                continue
            written = gap.written if gap.written <= gap.after else gap.written - n
            gone = gap.after + 1 + (absence.gone_at - gap.after - 1) % n
            age = gone - written
            stores[gap.contents] = (gap.written, min(age, stores.get(gap.contents, (0, n))[1]))
        ways = [
            [Store(block, 0, (written + age) % n) for age in range(1, most + 1)]
            for (block, _), (written, most) in stores.items()
        ]
        made = [a for a in absences if a is not None]
        for chosen in itertools.product(*ways):
            for sent in itertools.permutations(chosen):
                for brought in itertools.permutations(made):
                    yield Moves(sent, brought)


def _absences(gap: Gap, n: int) -> list[Absence | None]:
    found: list[Absence | None] = [None]
    for gone in range(gap.after + 1, gap.before):
        for load in range(gone + 1, gap.before + 1):
            found.append(Absence(gap.block, 0, gone % n, gone % n + load - gone))
    return found
