"""What is shown of training plans: words, page, pictures, trace, table, and what they add to a frontier."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from loadmaster.api.report.colours import LIGHT
from loadmaster.api.report.page import script
from loadmaster.api.report.training import views
from loadmaster.api.report.training.pictures import layers
from loadmaster.api.report.training.view import COPIES, TrainingView, place, view
from loadmaster.api.report.training.words import move_rows, peak_rows, place_rows, point_rows
from loadmaster.api.report.views import html, trace
from loadmaster.errors import InputError
from loadmaster.models.placement.problem import Tier
from loadmaster.models.training.checker import check
from loadmaster.models.training.documents import check_problem
from loadmaster.models.training.limits import peak_bytes, plain_us
from loadmaster.models.training.plan import GroupPlan, Schedule, Stay, TrainingInfeasibility, TrainingPlan
from loadmaster.models.training.problem import Group, Layer, LayerClass, Point, TrainingProblem

KB = 1000
# A kB takes a microsecond on the link. Phases: forward of a and b, backward of b and a.
PROBLEM = TrainingProblem(
    name="tiny",
    layers=(Layer("a", 0), Layer("b", 0)),
    classes=(
        LayerClass("block", (Point("keep", 10.0, 20.0, 4 * KB), Point("checkpoint", 10.0, 30.0, KB, KB, 4 * KB))),
    ),
    groups=(
        Group("a", (0,), 4 * KB, 2 * KB, 4 * KB, 2 * KB, 8 * KB, 3.0, 10.0),
        Group("b", (1,), 4 * KB, 2 * KB, 4 * KB, 2 * KB, 8 * KB, 3.0, 10.0),
        Group("base", (1,), 6 * KB, 3 * KB),
    ),
    host=Tier("host", 1.0, 1.0),
    fixed_bytes=KB,
)
# The state of a is on the host, b is updated there, and what b does not train comes for its two phases.
SCHEDULE = Schedule(
    (1, 0),
    (
        GroupPlan("device", "host", "device", update_after=3, update_stay=Stay(2, 4)),
        GroupPlan("copy", "host", "host", gradient_gone_at=3, copy_load_at=4),
        GroupPlan("streamed", "device", "none", stays=(Stay(0, 3),)),
    ),
)
BUDGET = 40 * KB
RESIDENT = Schedule((0, 0), (GroupPlan(update_after=3), GroupPlan(update_after=3), GroupPlan(update="none")))


def plan_of(schedule: Schedule, budget_bytes: int = BUDGET) -> TrainingPlan:
    """A plan by hand."""
    check_problem(PROBLEM)
    found, plain = check(PROBLEM, schedule, budget_bytes), plain_us(PROBLEM)
    return TrainingPlan(
        name=PROBLEM.name,
        problem_sha256=PROBLEM.sha256,
        status="feasible",
        objective=found.step_us,
        bound=plain,
        gap=1 - plain / found.step_us if found.step_us else None,
        unit="us",
        method="by-hand",
        stopped_by="method",
        seconds={"build": 0.0, "solve": 0.0, "check": 0.0},
        solver={},
        check=found.summary(),
        budget_bytes=budget_bytes,
        plain_us=plain,
        schedule=schedule,
    )


@pytest.fixture
def seen() -> TrainingView:
    return view(PROBLEM, plan_of(SCHEDULE))


def test_the_view_joins_the_plan_with_its_replay(seen: TrainingView) -> None:
    phases = [(event.what, event.words) for event in seen.events if event.what != "update"]
    assert phases == [
        ("forward", "forward of a"),
        ("forward", "forward of b"),
        ("backward", "backward of b"),
        ("backward", "backward of a"),
    ]
    (update,) = (event for event in seen.events if event.what == "update")
    assert (update.words, update.duration_us) == ("update of a", 3.0)
    assert sum(wait for _, wait in seen.waits) == pytest.approx(seen.check.stall_us)
    assert sum(event.duration_us for event in seen.events) + seen.check.stall_us == pytest.approx(seen.check.step_us)
    assert [role.name for role in seen.roles] == ["fixed", "weights", "state", "gradient", "activation"]
    assert sum(int(role.sizes.sum()) for role in seen.roles) == seen.check.phase_bytes.sum()
    with pytest.raises(InputError, match="over the budget"):
        view(PROBLEM, replace(seen.plan, budget_bytes=KB))
    with pytest.raises(InputError, match="problem_sha256"):
        view(replace(PROBLEM, fixed_bytes=0), seen.plan)


def test_memory_is_held_while_a_phase_waits() -> None:
    # The host updates a until 12, and its copy is back at 14: the first phase waits for it, and has its memory.
    waiting = Schedule(
        (0, 0),
        (GroupPlan("copy", "host", "host", gradient_gone_at=4, copy_load_at=4), *RESIDENT.groups[1:]),
    )
    seen = view(PROBLEM, plan_of(waiting, 60 * KB))
    assert seen.timeline.starts_us == (14.0, 24.0, 34.0, 54.0)
    # But for the gradient, which the phase before holds until it is on the host.
    assert seen.held == ((0.0, 3), (2.0, 0), (24.0, 1), (34.0, 2), (54.0, 3))


def test_a_colour_means_one_thing_among_links_and_updates(seen: TrainingView) -> None:
    (drawn,) = (picture for picture in views.pictures(seen) if picture.heading == "Links and updates")
    colours = [colour for colour, _ in drawn.legend]
    assert len(set(colours)) == len(colours) == len({LIGHT[colour] for colour in colours})
    assert len({*COPIES.values(), "forward", "backward"}) == len(COPIES) + 2


def test_a_colour_means_one_thing_in_each_layer(seen: TrainingView) -> None:
    legend = layers(seen).legend
    assert len(legend) == 5 and len({LIGHT[colour] for colour, _ in legend}) == 5


def test_links_and_updates_are_busy_in_rows(seen: TrainingView) -> None:
    rows = {row.label: row.busy for row in seen.rows()}
    assert [*rows] == ["device", "to host", "from host", "updates on host"]
    lengths = {label: sum(busy.end_us - busy.start_us for busy in of) for label, of in rows.items()}
    # To the host: the gradient of b, the state of a. From it: that state, the copy of b, and of what is streamed.
    assert lengths["to host"] == pytest.approx(2 + 8)
    assert lengths["from host"] == pytest.approx(8 + 2 + 3)
    assert lengths["updates on host"] == pytest.approx(10)
    assert all(0 <= b.start_us <= b.end_us <= seen.check.step_us * (1 + 1e-9) for of in rows.values() for b in of)


def test_tables(seen: TrainingView) -> None:
    assert point_rows(seen) == [
        ["block", "keep", "1", "3.91 KiB", "10.00 us", "20.00 us"],
        ["block", "checkpoint", "1", "1000 B", "10.00 us", "30.00 us"],
    ]
    assert place_rows(seen) == [
        ["with state on the host", "1", "3.91 KiB", "7.81 KiB", "7.81 KiB"],
        ["updated on the host", "1", "3.91 KiB", "7.81 KiB", "15.6 KiB"],
        ["frozen and streamed", "1", "5.86 KiB", "0 B", "8.79 KiB"],
    ]
    at_peak = {name: here for name, here, _ in peak_rows(seen)}
    assert at_peak["fixed"] == "1000 B" and at_peak["state"] == "7.81 KiB"
    assert move_rows(seen) == [
        ["copy", "0 B", "4.88 KiB"],
        ["gradient", "1.95 KiB", "0 B"],
        ["state", "7.81 KiB", "7.81 KiB"],
    ]


def test_in_words(seen: TrainingView) -> None:
    said = views.summary(seen.plan)
    for words in (
        "tiny under 39.1 KiB: feasible",
        "over the step with memory to spare (66.00 us)",
        "1 keep all, 1 at point 1",
        "1 with state on the host, 1 updated on the host, 1 frozen and streamed",
        "9.77 KiB stored, 12.7 KiB loaded",
        "32.2 KiB of memory, updates for 10.00 us",
        "waiting for copies and the host",
        "by-hand",
        "passed",
    ):
        assert words in said
    details = views.details(seen)
    for words in ("checkpoint", "with state on the host", "at the peak", "gradient", "waits"):
        assert words in details
    assert views.verdict(seen.plan, seen.check).startswith("peak ")
    assert "of 39.1 KiB at " in views.verdict(seen.plan, seen.check)
    broken = check(PROBLEM, SCHEDULE, KB)
    assert views.verdict(replace(seen.plan, budget_bytes=KB), broken).endswith(broken.peak_at)
    assert place(GroupPlan("streamed", "device", "device")) == "placed as no rule allows"


def test_a_step_may_be_shorter_than_with_everything_on_the_device(seen: TrainingView) -> None:
    # Updates on the host are no longer the device's.
    quicker = replace(seen.plan, objective=0.9 * seen.plan.plain_us)
    assert "59.40 us, 10.00 % below the step with memory to spare (66.00 us)" in views.summary(quicker)
    assert "10.00 % below the step with everything on the device" in views.plan_page(replace(seen, plan=quicker))


def none(infeasibility: TrainingInfeasibility | None) -> TrainingPlan:
    nothing: dict[str, Any] = {"objective": None, "bound": None, "gap": None, "schedule": None, "check": {}}
    plan = plan_of(SCHEDULE)
    return replace(plan, status="infeasible", infeasibility=infeasibility, **nothing)


def test_no_plan_in_words() -> None:
    lacking = none(TrainingInfeasibility(45 * KB, 5 * KB, "backward of b"))
    said = views.summary(lacking)
    assert "45000 bytes): no plan needs less" in said and "4.88 KiB" in said and "backward of b" in said
    assert views.infeasible(lacking) == (
        "no plan fits 39.1 KiB: it takes at least 4.88 KiB more, 45000 bytes (backward of b)."
    )
    assert "no plan" in views.summary(none(None)) and "no plan fits" in views.infeasible(none(None))


def test_page_and_pictures(seen: TrainingView) -> None:
    page = html(seen).decode()
    for words in (
        *("Memory over the step", "Links and updates", "Layer by layer", "to host", "updates on host"),
        *("How layers run", "Where parameters are", "What the peak is made of", "What moves", "The longest waits"),
        *("a: checkpoint", "b: updated on the host", "base: frozen and streamed", "forward of a"),
    ):
        assert words in page
    assert page.count("<script") == page.count(f"<script>{script()}</script>") == 1
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert views.png(seen).startswith(b"\x89PNG")
    headings = ["Memory over the step", "Links and updates", "Layer by layer"]
    assert [picture.heading for picture in views.pictures(seen)] == headings


def test_a_plan_that_moves_nothing() -> None:
    still = view(PROBLEM, plan_of(RESIDENT, peak_bytes(PROBLEM)))
    assert still.check.step_us == plain_us(PROBLEM)
    assert [row.label for row in still.rows()] == ["device"]
    page = html(still).decode()
    assert "What moves" not in page and "The longest waits" not in page and "host memory" not in page
    assert "2 resident, 1 frozen" in views.summary(still.plan)


def test_two_plans_in_one_picture(seen: TrainingView) -> None:
    (picture,) = views.both(seen, view(PROBLEM, plan_of(RESIDENT, peak_bytes(PROBLEM))))
    assert any(words.startswith("line: the other plan, ") for _, words in picture.legend)
    assert "stroke-dasharray" in picture.drawing.markup


def test_the_trace(seen: TrainingView) -> None:
    document = json.loads(trace(seen))
    events = document["traceEvents"]
    assert document["otherData"]["budget_bytes"] == BUDGET
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert tracks == {1: "device", 2: "to host", 3: "from host", 4: "updates on host"}
    device = [(e["name"], e["dur"]) for e in events if e["ph"] == "X" and e["tid"] == 1 and e["cat"] != "stall"]
    assert device == [
        ("forward of a", 10),
        ("forward of b", 10),
        ("backward of b", 20),
        ("backward of a", 30),
        ("update of a", 3),
    ]
    levels = [(e["ts"], sum(e["args"].values())) for e in events if e["ph"] == "C" and e["name"] == "memory"]
    # What the last phase holds stays until the state that its update had is back on the host.
    a, b, c, d = seen.check.phase_bytes.tolist()
    assert levels == [(0, d), (8, a), (18, b), (28, c), (50, d)]


def test_the_table_of_groups(seen: TrainingView) -> None:
    header, *rows = views.csv(seen).decode().splitlines()
    assert header == (
        "group,layers,weight_bytes,state_bytes,weights,state,update,update_after,update_stay,gradient_gone_at,"
        "copy_load_at,stays"
    )
    assert rows == [
        "a,0,4000,8000,device,host,device,3,2..4,,,",
        "b,1,4000,8000,copy,host,host,,,3,4,",
        "base,1,6000,0,streamed,device,none,,,,,0..3",
    ]


def test_what_a_budget_costs_is_a_row_of_the_frontier(seen: TrainingView) -> None:
    extras = views.frontier_extras(PROBLEM, [seen.plan, none(TrainingInfeasibility(45 * KB, 5 * KB, "there"))])
    assert extras.baseline == ("everything on the device", 66.0)
    assert extras.unplanned == ("everything on the device", peak_bytes(PROBLEM), 66.0)
    feasible, lacking = extras.rows
    assert feasible[1:] == ("9.77 KiB", "12.7 KiB", "32.2 KiB", "") and feasible[0].endswith(" %")
    assert lacking == ("", "", "", "", "43.9 KiB")


def test_states_in_files_are_said_and_drawn() -> None:
    """Both are updated on the host; the disk writes a state of 8 kB in 4 us, reads it in 2, and bears 160 kB."""
    in_files = GroupPlan("copy", "disk", "host", gradient_gone_at=5, copy_load_at=4)
    schedule = Schedule((0, 0), (in_files, replace(in_files, gradient_gone_at=3), SCHEDULE.groups[2]), 1)
    problem = replace(PROBLEM, disk=Tier("nvme", 2.0, 4.0, endurance_bytes=160 * KB))
    found = check(problem, schedule, BUDGET)
    assert found.ok, found.violations
    plan = replace(plan_of(SCHEDULE), problem_sha256=problem.sha256, schedule=schedule, check=found.summary())
    seen = view(problem, replace(plan, objective=found.step_us))
    assert "15.6 KiB in files, written and read in every step" in views.summary(seen.plan)
    assert "2 updated on the host with state in files" in views.summary(seen.plan)
    (busy,) = (row.busy for row in seen.rows() if row.label == "nvme")
    assert sum(one.end_us - one.start_us for one in busy) == pytest.approx(2 * (4 + 2))
    assert {one.words for one in busy} >= {"state of a to disk", "state of b from disk"}
    told, page = views.details(seen), views.plan_page(seen)
    assert "10 steps" in told and "What the disk takes" in page and "10 steps" in page
    assert ",disk,host," in views.csv(seen).decode()
    names = {e.get("args", {}).get("name") for e in views.chrome_trace(seen)["traceEvents"]}
    assert "nvme" in names
    # Written by nobody, it lasts.
    idle = view(problem, replace(plan_of(SCHEDULE), problem_sha256=problem.sha256))
    assert "nvme" not in views.details(idle)
