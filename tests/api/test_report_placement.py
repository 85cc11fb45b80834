"""What is shown of placement plans: words, page, pictures, trace; and policies beside each other."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from loadmaster.api.report.page import script
from loadmaster.api.report.placement import views
from loadmaster.api.report.placement.links import link_rows
from loadmaster.api.report.placement.simulation import simulate
from loadmaster.api.report.placement.view import PlacementView, view
from loadmaster.api.report.placement.words import wear
from loadmaster.api.report.views import html
from loadmaster.api.report.views import trace as chrome_trace
from loadmaster.errors import InputError
from loadmaster.models.placement.checker import check
from loadmaster.models.placement.plan import Absence, Moves, PlacementInfeasibility, PlacementPlan, Store
from tests.models.placement.tiny import KB, plan_of, trace

# Operator 0 reads and writes A (4 kB), operator 1 reads B, which nobody writes: one of them fits.
PROBLEM = trace([("A", "A"), ("B", "")], [4, 3])
MOVES = Moves((Store(0, 0, 1),), (Absence(0, 0, 1, 2), Absence(1, 0, 0, 1)))
# Operator 0: A's load of 4 us, 10 of its own; operator 1: A's store of 4, B's load of 3, 10 of its own.
PLAN = plan_of(PROBLEM, MOVES, 4 * KB, 31.0)

HEADINGS = ("Memory over the step", "What is away", "The links")


@pytest.fixture
def seen() -> PlacementView:
    return view(PROBLEM, replace(PLAN, check=check(PROBLEM, MOVES, 4 * KB).summary()))


def test_the_view_joins_the_plan_with_its_replay(seen: PlacementView) -> None:
    assert seen.check.objective == 31
    assert {role: sizes.tolist() for role, sizes in seen.away_bytes.items()} == {"activation": [3 * KB, 4 * KB]}
    assert [(a.block, a.size_bytes, a.absences, a.positions) for a in seen.away] == [
        (0, 4 * KB, 1, 1),
        (1, 3 * KB, 1, 1),
    ]
    run = seen.run
    assert (run.policy, run.step_us, run.faults) == ("plan", (31.0,), 0)
    assert (run.stored_bytes, run.loaded_bytes, run.dropped_bytes) == (4 * KB, 7 * KB, 3 * KB)
    assert run.stall_us.tolist() == [4, 7]
    with pytest.raises(InputError, match="over the budget"):
        view(PROBLEM, replace(PLAN, budget_bytes=4 * KB - 1))
    with pytest.raises(InputError, match="problem_sha256"):
        view(trace([("A", "")], [1]), PLAN)


def test_links_are_busy_in_rows(seen: PlacementView) -> None:
    rows = link_rows(PROBLEM, seen.run)
    assert [(row.label, [(c.start_us, c.end_us) for c in row.copies]) for row in rows] == [
        ("to host", [(14, 18)]),
        ("from host", [(0, 4), (18, 21)]),
    ]


def test_a_copy_that_ends_in_the_next_step_is_at_both_ends(seen: PlacementView) -> None:
    (store, *_) = (copy for copy in seen.run.copies if copy.what == "store")
    late = replace(seen.run, copies=(replace(store, start_us=29.0, end_us=33.0),))
    (row,) = link_rows(PROBLEM, late)
    assert [(c.start_us, c.end_us) for c in row.copies] == [(0, 2), (29, 31)]
    assert link_rows(PROBLEM, replace(late, step_us=(0.0,))) == []


def test_in_words(seen: PlacementView) -> None:
    said = views.summary(seen.plan)
    for words in (
        "tiny under 3.91 KiB: feasible",
        "31.00 us, 55.00 %",
        "20.00 us",
        "3.91 KiB stored",
        "6.84 KiB loaded",
    ):
        assert words in said
    assert "11.00 us waiting for copies" in said and "passed" in said and "by hand" in said
    details = views.details(seen)
    assert "activation" in details and "operator 1 (op1)" in details and "7.000 us" in details
    assert views.verdict(seen.plan, seen.check).startswith(
        "peak 3.91 KiB of 3.91 KiB at operator 0 (op0), step 31.00 us"
    )
    broken = check(PROBLEM, Moves(), 4 * KB)
    assert "6.84 KiB of 3.91 KiB" in views.verdict(seen.plan, broken)


@pytest.mark.parametrize(
    ("endurance_bytes", "life"),
    [
        (None, ""),
        # 4 kB in 31 us: 4e14 bytes take 3.1e12 us.
        (4 * 10**14, "35.9 days"),
        (4 * 10**16, "9.8 years"),
    ],
)
def test_how_long_a_tier_that_wears_lasts(seen: PlacementView, endurance_bytes: int | None, life: str) -> None:
    tiers = (replace(seen.problem.tiers[0], endurance_bytes=endurance_bytes),)
    worn = replace(seen, problem=replace(seen.problem, tiers=tiers))
    assert wear(worn) == [[tiers[0].name, "3.91 KiB", life]]
    assert life in views.details(worn) and life in html(worn).decode()


def none(infeasibility: PlacementInfeasibility | None) -> PlacementPlan:
    nothing = {"objective": None, "bound": None, "gap": None, "moves": None, "check": {}}
    return replace(PLAN, status="infeasible", infeasibility=infeasibility, **nothing)  # type: ignore[arg-type]


def test_no_plan_in_words() -> None:
    lacking = none(PlacementInfeasibility(5 * KB, KB, "operator 0 (op0)"))
    assert "5000 bytes" in views.summary(lacking) and "operator 0 (op0)" in views.summary(lacking)
    assert views.infeasible(lacking) == (
        "no plan fits 3.91 KiB: 1000 B more are enough, 5000 bytes (operator 0 (op0))."
    )
    assert "no plan" in views.summary(none(None)) and "no plan fits" in views.infeasible(none(None))


def test_page_and_pictures(seen: PlacementView) -> None:
    page = html(seen).decode()
    for words in (
        "Memory over the step",
        "What is away",
        "The links",
        "to host",
        "What moves most",
        "The longest waits",
    ):
        assert words in page
    assert page.count("<script") == page.count(f"<script>{script()}</script>") == 1
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert views.png(seen).startswith(b"\x89PNG")
    assert [picture.heading for picture in views.pictures(seen)] == [
        "Memory over the step",
        "What is away",
        "The links",
    ]


def test_a_plan_that_moves_nothing() -> None:
    still = view(PROBLEM, plan_of(PROBLEM, Moves(), 7 * KB, 20.0))
    assert [picture.heading for picture in views.pictures(still)] == ["Memory over the step"]
    assert "nothing leaves the device" in views.details(still)
    assert b"What moves most" not in html(still)


def test_the_trace(seen: PlacementView) -> None:
    document = json.loads(chrome_trace(seen))
    events = document["traceEvents"]
    assert document["otherData"]["budget_bytes"] == 4 * KB
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert tracks == {1: "compute", 2: "to host", 3: "from host"}
    slices = [(tracks[e["tid"]], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert slices == [
        ("compute", "wait for copies", 0, 4),
        ("compute", "op0", 4, 10),
        ("compute", "wait for copies", 14, 7),
        ("compute", "op1", 21, 10),
        ("to host", "A", 14, 4),
        ("from host", "A", 0, 4),
        ("from host", "B", 18, 3),
    ]
    levels = [(e["name"], e["ts"], e["args"]) for e in events if e["ph"] == "C"]
    assert ("memory", 0, {"resident_bytes": 4 * KB}) in levels and ("budget", 31, {"budget_bytes": 4 * KB}) in levels


def test_what_a_budget_costs_is_a_row_of_the_frontier(seen: PlacementView) -> None:
    extras = views.frontier_extras(PROBLEM, [seen.plan, none(PlacementInfeasibility(5 * KB, KB, "there"))])
    assert extras.baseline == ("memory to spare", 20.0)
    assert extras.rows == (("55.00 %", "6.84 KiB", ""), ("", "", "4.88 KiB"))


def test_policies_beside_each_other() -> None:
    found = simulate(PROBLEM, ["lru", "plan"], 4 * KB, PLAN)
    # LRU: store 4, load 3, 10, and load 4 and 10: B leaves for nothing.
    lru, plan = found.document["policies"]
    assert (lru["policy"], lru["step_us"], lru["faults"], lru["dropped_bytes"]) == ("lru", 31.0, 2, 3 * KB)
    assert (plan["policy"], plan["step_us"], plan["faults"]) == ("plan", 31.0, 0)
    assert "1.550 x" in found.text and "against no limit" in found.text
    page = found.html()
    assert "Where each policy waits" in page and "Memory over the step" in page
    assert json.dumps(found.document)


def test_a_plan_that_does_not_hold_is_not_simulated() -> None:
    with pytest.raises(InputError, match="over the budget") as caught:
        simulate(PROBLEM, ["plan"], 4 * KB, replace(PLAN, moves=Moves()))
    assert caught.value.field == "--plan"
    with pytest.raises(InputError, match="holds no moves"):
        simulate(PROBLEM, ["plan"], 4 * KB, none(None))
    with pytest.raises(InputError, match="problem_sha256"):
        simulate(trace([("A", "")], [1]), ["plan"], 4 * KB, PLAN)
    with pytest.raises(InputError, match=r"budget_bytes: .*operator 0"):
        simulate(PROBLEM, ["lru"], 1, None)
