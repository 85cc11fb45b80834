"""A training plan in a few lines of text: the step, its proof, how layers run, where groups are, and what it moves."""

from __future__ import annotations

from collections import Counter, defaultdict

from loadmaster.api.columns import table
from loadmaster.api.report.training.view import PLACES, TrainingView, numbered, place
from loadmaster.api.report.words import (
    check_row,
    lifetime,
    measured_words,
    moved,
    moves_verdict,
    none_fits,
    peak_row,
    price_words,
    proof,
    step_row,
    under_budget,
)
from loadmaster.models.training.checker import TrainingCheck
from loadmaster.models.training.plan import Schedule, TrainingInfeasibility, TrainingPlan
from loadmaster.models.training.residency import host_bytes
from loadmaster.models.units import show_at_least, show_bytes, show_cost

_MOST_WAITS = 5


def summary(plan: TrainingPlan) -> str:
    """The lines that ``plan`` and ``show`` print."""
    return under_budget(plan, _infeasible_rows, _rows)


def infeasible(plan: TrainingPlan) -> str:
    """Explain why there is no plan, and how much more budget it takes."""
    return none_fits(plan, _why)


def _why(found: TrainingInfeasibility) -> str:
    more = f"it takes at least {show_bytes(found.short_bytes)} more"
    return f"{more}, {found.minimum_budget_bytes} bytes ({found.where})."


def verdict(plan: TrainingPlan, check: TrainingCheck) -> str:
    """The checker's findings in one line: the peak, the step and the bytes moved."""
    return moves_verdict(plan, check)


def details(view: TrainingView) -> str:
    """Lines on what was measured, where that is known, and tables of the points of layers, the places of groups, the
    peak by role, what is moved, and where it waits."""
    found, check = view.measured, view.check
    words = None if found is None else measured_words(found, check.peak_bytes, check.step_us)
    lines = [] if found is None else ["", f"{words}, on {found.device}"]
    lines += ["", table(point_rows(view), POINTS), "", table(place_rows(view), GROUPS)]
    lines += ["", table(peak_rows(view), PEAK)]
    if moves := move_rows(view):
        lines += ["", table(moves, MOVES)]
    if waits := wait_rows(view, _MOST_WAITS):
        lines += ["", table(waits, WAITS)]
    if wear := wear_rows(view):
        lines += ["", table(wear, WEAR)]
    return "\n".join(lines)


POINTS = ["layers", "how", "number", "keep", "forward", "backward"]
GROUPS = ["groups", "number", "weights", "state", "on the host"]
PEAK = ["on the device", "at the peak", "at most"]
MOVES = ["moves", "stored", "loaded"]
WAITS = ["waits", "for"]
WEAR = ["disk", "written each step", "lasts", "written without a pause"]


def point_rows(view: TrainingView) -> list[list[str]]:
    """Rows of the table of points: how many layers of each class run in which way; of all, what they keep and take."""
    rows = []
    for c, one in enumerate(view.problem.classes):
        layers = [n for n, layer in enumerate(view.problem.layers) if layer.layer_class == c]
        counts = Counter(view.schedule.points[n] for n in layers)
        for p, point in enumerate(one.points):
            if count := counts[p]:
                figures = [show_bytes(count * point.kept_bytes)]
                figures += [show_cost(count * us, "us") for us in (point.forward_us, point.backward_us)]
                rows.append([one.name, point.name, str(count), *figures])
    return rows


def place_rows(view: TrainingView) -> list[list[str]]:
    """Rows of the table of groups: how many are placed how, the bytes of their weights and states, and what the host
    holds of them."""
    rows = []
    for words in PLACES.values():
        pairs = zip(view.problem.groups, view.schedule.groups, strict=True)
        here = [(g.weight_bytes, g.state_bytes, host_bytes(g, at)) for g, at in pairs if place(at) == words]
        if here:
            rows.append([words, str(len(here)), *(show_bytes(sum(sizes)) for sizes in zip(*here, strict=True))])
    return rows


def peak_rows(view: TrainingView) -> list[list[str]]:
    """Rows of the table of roles: what each takes at the peak of all, and at its own."""
    at = int(view.check.phase_bytes.argmax())
    roles = [(role.name, int(role.sizes[at]), int(role.sizes.max())) for role in view.roles]
    return [[name, show_bytes(here), show_bytes(most)] for name, here, most in roles]


def move_rows(view: TrainingView) -> list[list[str]]:
    """Rows of the table of moves: bytes that a step stores and loads, by what they are."""
    moved: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for copy in view.timeline.copies:
        moved[copy.what][copy.direction] += copy.size_bytes
    return [
        [what, show_bytes(found["to host"]), show_bytes(found["from host"])] for what, found in sorted(moved.items())
    ]


def wait_rows(view: TrainingView, most: int) -> list[list[str]]:
    """Rows of the table of waits: what waits longest, and how long."""
    longest = sorted(view.waits, key=lambda item: -item[1])[:most]
    return [[event.words, show_cost(wait, "us")] for event, wait in longest]


def wear_rows(view: TrainingView) -> list[list[str]]:
    """The row of the table of the disk: what a step writes there, and for how many steps and how long one that wears
    lasts ([Wu24], section 5.3.6); none where there are no files."""
    disk, size_bytes = view.problem.disk, view.check.disk_bytes
    if disk is None or not size_bytes:
        return []
    lasts = ["for ever", ""]
    if disk.endurance_bytes is not None:
        steps = disk.endurance_bytes // size_bytes
        lasts = [f"{steps} steps", lifetime(steps * view.check.step_us)]
    return [[disk.name, show_bytes(size_bytes), *lasts]]


def places(schedule: Schedule) -> str:
    """Count the groups of each sort of place, in words."""
    return numbered([place(group) for group in schedule.groups], [*PLACES.values()])


def _rows(plan: TrainingPlan) -> list[tuple[str, str]]:
    rows = [step_row(plan, plan.plain_us), ("proof", proof(plan)), *peak_row(plan, "an unnamed phase")]
    if plan.schedule is not None:
        # The names of points are the problem's, which is not at hand.
        points, words = plan.schedule.points, {0: "keep all"}
        words |= {point: f"at point {point}" for point in sorted({*points} - {0})}
        rows.append(("layers", numbered([words[point] for point in points], [*words.values()])))
        rows.append(("groups", places(plan.schedule)))
    check = plan.check
    if "stored_bytes" in check and "loaded_bytes" in check:
        rows.append(("moves", moved(check["stored_bytes"], check["loaded_bytes"])))
    if check.get("host_bytes"):
        updates = f", updates for {show_cost(check['host_updates_us'], 'us')}" if check.get("host_updates_us") else ""
        rows.append(("host", f"{show_bytes(check['host_bytes'])} of memory{updates}"))
    if check.get("disk_bytes"):
        rows.append(("disk", f"{show_bytes(check['disk_bytes'])} in files, written and read in every step"))
    if check.get("stall_us"):
        rows.append(("price", f"{show_cost(check['stall_us'], 'us')} waiting for copies and the host"))
    for price in plan.prices or ():
        more, falls, gains = price_words(price, plan.unit)
        rows.append(("with", f"{more}: the bound falls by {falls}, the plan gains {gains}"))
    return [*rows, check_row(plan)]


def _infeasible_rows(found: TrainingInfeasibility) -> list[tuple[str, str]]:
    return [
        (
            "least",
            f"{show_at_least(found.minimum_budget_bytes)} ({found.minimum_budget_bytes} bytes): no plan needs less",
        ),
        ("short", f"by {show_bytes(found.short_bytes)}"),
        ("where", found.where),
    ]
