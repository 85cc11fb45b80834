"""Sweep over settings of fused collectives at some sizes: every one is checked, then timed in a CUDA graph.

Settings that give a call the same table are timed once. They take turns, so that none has a better moment.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.collective.plans import NEVER_BYTES
from loadmaster.errors import InputError

KIB, MIB = 1 << 10, 1 << 20
SAMPLES = 7


@dataclass(frozen=True)
class Setting:
    """Setting of a fused collective: the fields of its ``choice.Limits``, and from which size on two hops are used."""

    blocks: int
    packed_bytes: int
    packed_threads: int
    piece_bytes: int
    crossover_bytes: int


def settings_for(collective: str, size_bytes: int, standard: Setting) -> Iterator[Setting]:
    """Yield the standard setting first, then those that may matter at that size."""
    yield standard
    hops = (NEVER_BYTES, 1) if collective == "allreduce" and size_bytes >= 256 * KIB else (standard.crossover_bytes,)
    if size_bytes <= 128 * KIB:
        for blocks, threads in itertools.product((32, 64, 128), (64, 128, 256, 512)):
            yield Setting(blocks, NEVER_BYTES, threads, standard.piece_bytes, standard.crossover_bytes)
    elif size_bytes <= 4 * MIB:
        for blocks, threads, hop in itertools.product((64, 128, 256), (64, 128, 512), hops):
            yield Setting(blocks, NEVER_BYTES, threads, standard.piece_bytes, hop)
        for blocks, piece, hop in itertools.product((32, 64, 128), (32 * KIB, 128 * KIB), hops):
            yield Setting(blocks, 0, standard.packed_threads, piece, hop)
    else:
        for blocks, piece, hop in itertools.product((48, 64, 96, 128), (64 * KIB, 128 * KIB, 256 * KIB, MIB), hops):
            yield Setting(blocks, 0, standard.packed_threads, piece, hop)


def sweep(
    cases: list[tuple[str, int]],
    standard: Setting,
    engine_of: Callable[[str, Setting], Any],
    case_of: Callable[[str, int], Any],
    timed: Callable[[Any, Any], Callable[[], float]],
    wrong: Callable[[Any, Any], list[str]],
    slowest: Callable[[list[float]], list[float]],
    late: Callable[[], bool],
    say: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Measure rows of (case, setting), best first in each case.

    Args:
        timed: of a case and an engine: what takes one sample in us.
        wrong: what is wrong with a case's results.
        slowest: of every rank's times, the slowest rank's.
        late: whether to begin nothing new; the same on every rank.
    """
    rows: list[dict[str, Any]] = []
    for collective, size in cases:
        if late():
            break
        case = case_of(collective, size)
        found: dict[tuple[Any, ...], tuple[Setting, Callable[[], float]]] = {}
        seen: set[tuple[Any, ...]] = set()
        for setting in settings_for(collective, size, standard):
            engine = engine_of(collective, setting)
            table = _table_of(engine, size)
            if table in seen:
                continue
            seen.add(table)
            try:
                bad = wrong(case, engine)
            except InputError:
                continue  # More blocks than the GPU holds at once, on every rank.
            if bad:
                say(f"WRONG {collective} {size} {setting}: {'; '.join(bad)}")
            else:
                found[table] = (setting, timed(case, engine))
        if not found:
            continue
        times: dict[Any, list[float]] = {table: [] for table in found}
        for turn in range(SAMPLES + 1):
            for table, (_, play) in found.items():
                spent = play()
                if turn:
                    times[table].append(spent)
        medians = slowest([statistics.median(of) for of in times.values()])
        made = [
            {"collective": collective, "size_bytes": size, "median_us": median, "table": table, **vars(setting)}
            for median, (table, (setting, _)) in zip(medians, found.items(), strict=True)
        ]
        usual = medians[0]
        made.sort(key=lambda row: row["median_us"])
        rows += made
        best = "  ".join(f"{row['median_us']:.1f} {_short(row)}" for row in made[:4])
        say(f"{collective:15}{size:>11} standard {usual:.1f} | {best} | worst {made[-1]['median_us']:.1f}")
    return rows


def _table_of(engine: Any, size: int) -> tuple[Any, ...]:
    """Key of how the engine spreads a call: form, launches, and the first launch."""
    algorithm = engine.plan.algorithm_for(size)
    launches = engine.tables(algorithm, size)
    first = launches[0][1]
    streams = max(len(of_rank) for of_rank in first.streams)
    return (algorithm.form, len(launches), first.protocol, first.lanes, first.rounds, streams, first.threads)


def _short(row: dict[str, Any]) -> str:
    form, launches, protocol, lanes, rounds, streams, threads = row["table"]
    return f"({form} {protocol} {streams}x{lanes} blocks of {threads}, {rounds} rounds, {launches} launches)"
