"""Points that a user has measured, to be drawn with planned ones: read from CSV, JSON or Python."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

from loadmaster.errors import InputError
from loadmaster.models.fields import LARGEST_INTEGER
from loadmaster.models.json_text import parse_json
from loadmaster.models.kind import Limit, Problem
from loadmaster.models.units import show_cost, show_limit

Points = str | Path | Iterable[Mapping[str, Any]]

_PEAK = "peak_bytes"
# A mark that editors on Windows put in front, and white space.
_BEFORE = b"\xef\xbb\xbf \t\r\n"


@dataclass(frozen=True)
class Measured:
    """A measured step: how it was made, what it took of the limit, and the objective that was measured."""

    method: str
    value: int
    objective: float


def read_measured(source: Points, problem: Problem, limit: Limit, field: str = "measured") -> tuple[Measured, ...]:
    """Points from a CSV file, from a JSON file ``{"points": [...]}``, or from rows at hand. A row has ``method``,
    ``step_us`` (in the unit of the problem's objective), and ``peak_bytes`` or the limit that it ran under
    (``budget_bytes``); the peak counts where both are there. Other columns are left alone.

    Raises InputError naming ``field`` or a row of it: there is no such file, or a value cannot be used.
    """
    if not isinstance(source, str | Path | Iterable):
        raise InputError(field, source, "is no list of points", f"Give rows with {_columns(problem, limit)}.")
    rows = _rows_of(Path(source), field) if isinstance(source, str | Path) else list(source)
    if not rows:
        found = str(source) if isinstance(source, str | Path) else rows
        raise InputError(field, found, "has no points", f"Give rows with {_columns(problem, limit)}.")
    return tuple(_point(row, problem, limit, f"{field}[{n}]") for n, row in enumerate(rows))


def measured_rows(limit: Limit, measured: Sequence[Measured], unit: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table of measured points."""
    rows = [[m.method, show_limit(m.value, limit.unit), show_cost(m.objective, unit)] for m in measured]
    return ["method", _taken(limit), "measured"], rows


def _taken(limit: Limit) -> str:
    return "peak" if limit.unit == "bytes" else limit.name


def _columns(problem: Problem, limit: Limit) -> str:
    peak = f"{_PEAK} or " if limit.unit == "bytes" else ""
    return f"method, step_{problem.unit}, and {peak}{limit.field}"


def _rows_of(path: Path, field: str) -> list[Any]:
    def refused(_: object, problem: str) -> InputError:
        return InputError(field, str(path), problem, 'Give the path of a CSV file, or of JSON: {"points": [...]}.')

    try:
        content = path.read_bytes()
    except OSError as error:
        raise refused(None, f"cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise refused(None, f"is no path: {error}") from None
    if content.lstrip(_BEFORE)[:1] in (b"{", b"["):
        rows = parse_json(content, refused).get("points")
        if not isinstance(rows, list):
            raise refused(None, "has no list of points")
        return rows
    try:
        return list(csv.DictReader(io.StringIO(content.decode("utf-8-sig")), skipinitialspace=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise refused(None, f"is no CSV: {error}") from None


def _point(row: object, problem: Problem, limit: Limit, field: str) -> Measured:
    """Read one row; an empty cell is one that is missing."""
    if not isinstance(row, Mapping):
        raise InputError(field, row, "is no row", f"A row has {_columns(problem, limit)}.")
    cells = {name: value for name, value in row.items() if value not in (None, "")}
    objective = f"step_{problem.unit}"
    names = (_PEAK, limit.field) if limit.unit == "bytes" else (limit.field,)
    taken = next((name for name in names if name in cells), names[0])
    for name in ("method", objective, taken):
        if name not in cells:
            raise InputError(f"{field}.{name}", None, "is missing", f"A row has {_columns(problem, limit)}.")
    value = limit.value(_whole(cells[taken]), problem, f"{field}.{taken}")
    if not 1 <= value <= LARGEST_INTEGER:
        raise InputError(f"{field}.{taken}", cells[taken], "is not between 1 and 2**63", f"Give {limit.values}.")
    return Measured(str(cells["method"]), value, _positive(cells[objective], f"{field}.{objective}"))


def _whole(given: Any) -> Any:
    """Return a whole number as an int, be it a float or of NumPy; anything else as it is."""
    if isinstance(given, Integral) and not isinstance(given, bool):
        return int(given)
    return int(given) if isinstance(given, float) and given.is_integer() else given


def _positive(given: object, field: str) -> float:
    try:
        found = math.nan if isinstance(given, bool) else float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        found = math.nan
    if not 0 < found < math.inf:
        raise InputError(field, given, "is no number above 0", "Give what a step took, as a number.")
    return found
