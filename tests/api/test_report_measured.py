"""Points that were measured: read from CSV, JSON and rows, and refused by field, value and remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster.api.report.measured import Measured, read_measured
from loadmaster.errors import InputError
from loadmaster.models.kinds import limit_of, read_problem
from loadmaster.models.memory.presets import chain
from tests.api.cli.plans_by_hand import MEGABYTE

PROBLEM, LIMIT = read_problem(chain(6, MEGABYTE)), limit_of("memory")
ROW: dict[str, Any] = {"method": "eager", "step_us": 81000.0, "peak_bytes": 6_000_000}


def read(source: Any) -> tuple[Measured, ...]:
    return read_measured(source, PROBLEM, LIMIT)


def test_a_csv_file(tmp_path: Path) -> None:
    """The peak counts where there is one, else the budget; other columns are left alone; Excel's mark is none."""
    path = tmp_path / "points.csv"
    lines = ["method, step_us,peak_bytes,budget_bytes,date", "eager,81000.5,6000000,7MB,monday", "no peak, 9e4,,5MiB,"]
    path.write_text("\n".join(lines), "utf-8-sig")
    assert read(path) == (Measured("eager", 6_000_000, 81000.5), Measured("no peak", 5 << 20, 9e4))
    assert read(str(path)) == read(path)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_json_file(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "points.json"
    path.write_text(json.dumps({"points": [ROW], "machine": "mine"}), encoding)
    assert read(path) == (Measured("eager", 6_000_000, 81000.0),)


@pytest.mark.parametrize("peak", [6_000_000, 6e6, np.int64(6_000_000), np.float64(6e6), "6MB", "6000000"])
def test_rows_at_hand(peak: object) -> None:
    """Whole numbers however Python, NumPy and pandas hold them."""
    assert read([ROW | {"peak_bytes": peak}]) == (Measured("eager", 6_000_000, 81000.0),)
    assert read(row | {"peak_bytes": peak} for row in (ROW, ROW))[1].value == 6_000_000


def test_what_a_row_must_have_is_said() -> None:
    with pytest.raises(InputError, match="A row has method, step_us, and peak_bytes or budget_bytes"):
        read([{"method": "eager", "step_ms": 3.0, "peak_bytes": 5}])


@pytest.mark.parametrize(
    ("field", "value", "rows"),
    [
        ("measured", [], []),
        ("measured[0]", "eager", ["eager"]),
        ("measured[0].method", None, [ROW | {"method": ""}]),
        ("measured[1].step_us", None, [ROW, {"method": "eager", "peak_bytes": 5}]),
        ("measured[0].step_us", "fast", [ROW | {"step_us": "fast"}]),
        ("measured[0].step_us", 0, [ROW | {"step_us": 0}]),
        ("measured[0].step_us", True, [ROW | {"step_us": True}]),
        ("measured[0].step_us", "inf", [ROW | {"step_us": "inf"}]),
        ("measured[0].peak_bytes", None, [{"method": "eager", "step_us": 1.0}]),
        ("measured[0].peak_bytes", 0.5, [ROW | {"peak_bytes": 0.5}]),
        ("measured[0].peak_bytes", -1, [ROW | {"peak_bytes": -1}]),
        ("measured[0].peak_bytes", 1 << 63, [ROW | {"peak_bytes": 1 << 63}]),
        ("measured[0].budget_bytes", "6mb", [{"method": "eager", "step_us": 1.0, "budget_bytes": "6mb"}]),
    ],
)
def test_what_cannot_be_used_is_named(field: str, value: object, rows: Any) -> None:
    with pytest.raises(InputError) as caught:
        read(rows)
    assert (caught.value.field, caught.value.value) == (field, value)
    assert caught.value.remedy.startswith(("Give", "A row has", "Write"))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read"),
        (b"", "has no points"),
        (b"method,step_us,peak_bytes\n", "has no points"),
        (b"\xff\xfe\x00method", "is no CSV"),
        (b'{"points": 3}', "has no list of points"),
        (b'{"points": [', "is not JSON"),
        (b"[1]", "is no JSON object"),
    ],
)
def test_files_that_hold_no_points_are_named(tmp_path: Path, content: bytes | None, problem: str) -> None:
    path = tmp_path / "points"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_measured(path, PROBLEM, LIMIT, "--measured")
    assert problem in caught.value.problem
    assert (caught.value.field, caught.value.value) == ("--measured", str(path))
    assert caught.value.remedy
