"""Tables as CSV, for spreadsheets and other programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

__all__ = ["csv_bytes"]

# What begins so is a formula to a spreadsheet: it would run what the author of a document wrote as a name.
_FORMULA = ("=", "+", "-", "@")


def csv_bytes(header: Sequence[str], rows: Iterable[Sequence[object]]) -> bytes:
    """Rows under a header. A text that a spreadsheet would take for a formula begins with an apostrophe."""
    text = io.StringIO()
    written = csv.writer(text, lineterminator="\n")
    written.writerow(map(_cell, header))
    written.writerows(map(_cell, row) for row in rows)
    return text.getvalue().encode()


def _cell(value: object) -> object:
    if not isinstance(value, str):
        return value
    # Which would begin another row: it is not among what is quoted.
    text = value.replace("\r", " ")
    is_formula = text.lstrip().startswith(_FORMULA) and not _is_number(text)
    return f"'{text}" if is_formula or text.startswith("\t") else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
