"""Partition plans in words, on a page, as a picture and a table: Megatron's pair of products on two GPUs."""

from __future__ import annotations

import csv
import io

import pytest

import loadmaster
from loadmaster.api.report.partition import views
from loadmaster.api.report.partition.view import PartitionView
from loadmaster.api.report.views import html
from loadmaster.errors import InputError
from loadmaster.models.partition.plan import PartitionPlan
from tests.models.partition.instances import two_products

PLENTY = 1 << 20


def planned(budget_bytes: int = PLENTY, **options: object) -> PartitionPlan:
    found = loadmaster.plan(two_products(2, **options), budget_bytes=budget_bytes, progress=False)
    assert isinstance(found, PartitionPlan)
    return found


@pytest.fixture(scope="module")
def bytes_view() -> PartitionView:
    options = {"objective": "bytes", "replicas": False}
    return views.view(two_products(2, **options), planned(**options))


def test_words_say_what_moves_and_how_good_that_is(bytes_view: PartitionView) -> None:
    said = views.summary(bytes_view.plan)
    assert said.startswith("two-products under 1.00 MiB a GPU: optimal")
    assert "moves    2.00 KiB" in said and "passed" in said and "all GPUs receive 2.00 KiB" in said


def test_tensors_have_a_column_for_each_axis(bytes_view: PartitionView) -> None:
    lines = views.details(bytes_view).splitlines()
    assert "axis 0 (2)" in lines[1]
    of = {line.split()[0]: line for line in lines[2:8]}
    assert "64 x 64" in of["a"] and "8.00 KiB" in of["a"] and "parameter" in of["a"]
    assert any(line.startswith("mm") for line in lines[9:])
    # x and r, 1 KiB each, are gathered for a product each.
    assert lines[-1] == "one step runs 2 x all-gather"


def test_a_table_has_a_row_for_every_tensor(bytes_view: PartitionView) -> None:
    rows = list(csv.reader(io.StringIO(views.csv(bytes_view).decode())))
    assert rows[0] == ["tensor", "role", "shape", "axis 0"]
    assert [row[0] for row in rows[1:]] == ["x", "a", "h", "r", "b", "y"]
    assert {row[3] for row in rows[1:]} <= {"S0", "S1"}


def test_a_page_and_a_picture(bytes_view: PartitionView) -> None:
    page = html(bytes_view).decode()
    assert "How tensors are split" in page and "What moves" in page and "http-equiv" not in page
    assert views.png(bytes_view).startswith(b"\x89PNG")


def test_where_nothing_moves_there_is_nothing_to_draw() -> None:
    plan = planned(objective="bytes")
    seen = views.view(two_products(2, objective="bytes"), plan)
    assert plan.objective == 0 and views.pictures(seen) == []
    assert "What moves" not in html(seen).decode()
    assert views.png(seen).startswith(b"\x89PNG")


def test_no_plan_says_what_is_largest() -> None:
    plan = planned(1000)
    assert plan.status == "infeasible"
    assert views.infeasible(plan).startswith("no plan fits 1000 B a GPU: it needs ")
    said = views.summary(plan)
    assert "largest  " in said and "minimum  " in said


def test_a_plan_that_does_not_hold_is_not_shown() -> None:
    with pytest.raises(InputError, match="problem_sha256"):
        views.view(two_products(4), planned())
