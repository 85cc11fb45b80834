"""CSV: no cell is a formula to a spreadsheet, and numbers stay numbers."""

from __future__ import annotations

import csv
import io

import pytest

from loadmaster.api.report.csv_text import csv_bytes


@pytest.mark.parametrize("text", ['=HYPERLINK("http://x")', "+1+1", "-1+1", "@SUM(A1)", "\t=1", " =1", "\ta", "\r=1"])
def test_a_formula_becomes_text(text: str) -> None:
    rows = list(csv.reader(io.StringIO(csv_bytes([text], [[text, 1]]).decode(), newline="")))
    shown = "'" + text.replace("\r", " ")
    assert rows == [[shown], [shown, "1"]]


def test_no_cell_begins_another_row() -> None:
    written = csv_bytes(["a"], [["b\r=1\n=2"]]).decode()
    assert written == 'a\n"b =1\n=2"\n'


def test_numbers_and_other_text_stay() -> None:
    row = ["-1.5", "+2e3", -3, 0.5, "a=b", "", None]
    (read,) = csv.reader(io.StringIO(csv_bytes(["a"], [row]).decode().split("\n", 1)[1]))
    assert read == ["-1.5", "+2e3", "-3", "0.5", "a=b", "", ""]
