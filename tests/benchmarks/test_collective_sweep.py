"""The sweep over settings of fused collectives: what it tries, and whom it names best."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from benchmarks.collective.plans import NEVER_BYTES, direct
from benchmarks.collective.sweep import KIB, MIB, Setting, settings_for, sweep
from loadmaster.executor.collective.fused.arena import Capacity
from loadmaster.executor.collective.fused.choice import Limits
from loadmaster.executor.collective.fused.engine import tables_of
from loadmaster.models.collective.lowering import lower

STANDARD = Setting(64, 512 * KIB, 128, 128 * KIB, NEVER_BYTES)


def test_the_standard_comes_first_and_packed_words_are_for_small_calls() -> None:
    for collective in ("allreduce", "allgather"):
        for size in (16 * KIB, MIB, 256 * MIB):
            first, *others = settings_for(collective, size, STANDARD)
            assert first == STANDARD
            assert len(set(others)) == len(others) > 8
            assert {s.packed_bytes for s in others} <= ({0} if size > 4 * MIB else {0, NEVER_BYTES})
            assert ({s.crossover_bytes for s in others} == {1, NEVER_BYTES}) == (
                collective == "allreduce" and size >= MIB
            )


def test_the_fastest_setting_of_a_case_is_named_first() -> None:
    problem, plan = direct("allgather", 2)
    lowered = lower(problem, plan.algorithms[0])
    said: list[str] = []
    seen: list[Setting] = []

    def engine_of(collective: str, setting: Setting) -> Any:
        limits = Limits(setting.blocks, setting.packed_bytes, setting.packed_threads, setting.piece_bytes)
        seen.append(setting)
        return SimpleNamespace(
            plan=plan,
            setting=setting,
            tables=lambda algorithm, size: tables_of(problem, algorithm, lowered, size, limits, Capacity()),
        )

    rows = sweep(
        [("allgather", 64 * MIB), ("allgather", 32 * MIB)],
        STANDARD,
        engine_of,
        lambda collective, size: (collective, size),
        lambda case, engine: lambda: 1000.0 / engine.setting.blocks,
        lambda case, engine: ["one element"] if engine.setting.blocks == 128 else [],
        lambda times: times,
        lambda: len(seen) > 20,
        said.append,
    )
    assert {row["size_bytes"] for row in rows} == {64 * MIB, 32 * MIB}
    assert rows[0]["blocks"] == 96 and rows[0]["median_us"] == 1000.0 / 96
    assert len({row["table"] for row in rows if row["size_bytes"] == 64 * MIB}) == sum(
        row["size_bytes"] == 64 * MIB for row in rows
    )
    wrong = [line for line in said if "WRONG" in line]
    assert {line.split()[2] for line in wrong} == {str(64 * MIB), str(32 * MIB)}
    assert all("blocks=128" in line and "one element" in line for line in wrong)
    assert "standard 15.6" in next(line for line in said if "WRONG" not in line)
