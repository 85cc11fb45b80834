"""What a plan measured: there and back, thinned without losing its peak, and refused where it cannot be drawn."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.errors import InputError
from loadmaster.models.kinds import read_measurement as read_any
from loadmaster.models.memory.measurement import (
    MOST_POINTS,
    MemoryMeasurement,
    measured,
    read_measurement,
    write_measurement,
)
from loadmaster.models.memory.plan import MemoryInfeasibility, Stage
from loadmaster.models.memory.presets import chain
from tests.api.cli.plans_by_hand import MEGABYTE, no_plan, plan_by_hand

PLAN = plan_by_hand(chain(4, MEGABYTE), 6 * MEGABYTE)
LEVELS = [(0.0, 1_000_000), (5.0, 4_000_000), (9.5, 2_000_000), (20.0, 2_000_000)]


def document(**changes: Any) -> dict[str, Any]:
    return {**write_measurement(measured(PLAN, "cpu", 4_100_000, 18.0, LEVELS)), **changes}


def test_there_and_back() -> None:
    found = measured(PLAN, "cpu", 4_100_000, 18.0, LEVELS)
    again = read_measurement(json.loads(json.dumps(write_measurement(found))), PLAN)
    assert again == found == read_any(found, PLAN)
    assert list(zip(again.times_us, again.allocated_bytes, strict=True)) == LEVELS


def test_equal_schedules_are_one_step_and_others_are_not() -> None:
    found = document()
    assert read_measurement(found, replace(PLAN, seconds={"solve": 9.0}, gap=0.2, bound=None)).step_us == 18.0
    stages = PLAN.schedule.stages  # type: ignore[union-attr]
    other = replace(PLAN.schedule, stages=(*stages[:-1], Stage(stages[-1].computes, 0, (0,))))  # type: ignore[type-var]
    with pytest.raises(InputError, match=r"schedule_sha256.*something else.*that fit wrote"):
        read_measurement(found, replace(PLAN, schedule=other))
    with pytest.raises(InputError, match="schedule_sha256"):
        found = document(problem_sha256=PLAN.problem_sha256)
        read_measurement(found, no_plan(chain(4, MEGABYTE), 1, MemoryInfeasibility(2, 1, "backward 1", ())))


@given(sizes=st.lists(st.integers(0, 1 << 40), min_size=2, max_size=400), copies=st.integers(1, 120))
def test_thinning_keeps_the_peak_the_times_and_the_end(sizes: list[int], copies: int) -> None:
    levels = [(float(n), size) for n, size in enumerate(sizes * copies)]
    found = measured(PLAN, "cpu", max(sizes), 1.0, levels)
    assert len(found.times_us) == len(found.allocated_bytes) <= MOST_POINTS
    # The end is no stretch of its own, but for a step of one.
    assert max(found.allocated_bytes) == max(size for _, size in levels)
    assert (found.times_us[0], found.times_us[-1]) == (0.0, levels[-1][0])
    assert list(found.times_us) == sorted(found.times_us)
    if len(levels) <= MOST_POINTS:
        assert list(zip(found.times_us, found.allocated_bytes, strict=True)) == levels


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"schema": "loadmaster/measurement/2"}, r"schema: .*does not read"),
        ({"schema": "loadmaster/plan/1"}, "not the expected schema"),
        ({"kind": "placement"}, "kind"),
        ({"problem_sha256": "0" * 64}, "problem_sha256: .*not the problem that this plan is for"),
        ({"colour": "red"}, "colour: .*not a field"),
        ({"times_us": [0.0, 5.0, 4.0, 20.0]}, r"times_us\[2\]: is before the one before it, 5.0 \(found 4.0\)"),
        ({"times_us": [1.0, 5.0, 9.0, 20.0]}, r"times_us\[0\]: is not 0"),
        ({"times_us": [0.0, 0.0, 0.0, 0.0]}, r"times_us\[3\]: is no time"),
        ({"step_us": 0.0}, "step_us: is no time"),
        ({"step_us": "fast"}, "step_us"),
        ({"allocated_bytes": [1, 2, 3]}, "allocated_bytes: .*are 3 for 4"),
        ({"allocated_bytes": [1, 2, 3, -4]}, r"allocated_bytes\[3\]"),
        ({"times_us": [], "allocated_bytes": []}, "times_us"),
        ({"times_us": [0.0] * (MOST_POINTS + 1)}, "times_us"),
    ],
)
def test_what_cannot_be_drawn_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        read_measurement(document(**changes), PLAN)


def test_a_kind_without_measurements_says_so() -> None:
    with pytest.raises(InputError, match="measured: is a kind whose plans have no measurement"):
        read_any(document(), replace(PLAN, kind="collective"))  # type: ignore[arg-type]


def test_it_is_saved_to_a_file(tmp_path: Any) -> None:
    found: MemoryMeasurement = measured(PLAN, "cuda", 4_100_000, 18.0, LEVELS)
    found.save(tmp_path / "measured.json")
    assert read_any(tmp_path / "measured.json", PLAN) == found
