"""Schedule of a placement plan: moves before each call of the step, followed while the calls are as recorded.

A call that was not recorded (a loss that is printed now and then) is passed over; calls that do not come are skipped,
if one of the next that do come was recorded soon after. After too many strangers the rest of the step has no plan.
Whatever is followed, an operator gets its pages: a plan only decides when they move.

Each shape of the step that came back has a plan; the least recently used one is dropped. Until a step's calls show its
shape, the plan is followed of the shape that came after the last one before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from loadmaster.executor.placement.pager.memory import Page, PagedMemory
from loadmaster.executor.placement.trace import Trace
from loadmaster.models.placement.plan import Moves

_WINDOW = 64  # calls that may be missing, or strange, in a row
MOST_SHAPES = 8
"""Most shapes that have plans, or recordings that wait for another of their shape."""
_STRANGE = 64  # calls of no plan, at most, before a step is taken for one of the last shape
Shape = Hashable


@dataclass(frozen=True)
class RecordedCall:
    """A call of the recorded step: ``key`` has its operator, and shape and type of each tensor. ``operands`` and
    ``births`` number the storages that it was given and made, None where there is no page; ``operator`` numbers it, if
    it is one."""

    key: Hashable
    operands: tuple[int | None, ...]
    births: tuple[int | None, ...]
    new_bytes: int
    operator: int | None


Move = tuple[Literal["store", "evict", "load"], int]
"""Move of the page that a recorded storage is, by the storage's number."""


@dataclass
class Schedule:
    """Moves before each call of the recorded step."""

    calls: Sequence[RecordedCall]
    moves: dict[int, list[Move]]
    uses: dict[int, list[int]] = field(default_factory=dict)
    places: dict[Hashable, list[int]] = field(default_factory=dict)
    born: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        for at, call in enumerate(self.calls):
            self.places.setdefault(call.key, []).append(at)
            self.born.update(number for number in call.births if number is not None)
            for number in {*call.operands, *call.births}:
                if number is not None:
                    self.uses.setdefault(number, []).append(at)


def schedule_of(calls: Sequence[RecordedCall], trace: Trace, moves: Moves) -> Schedule:
    """Build the schedule of a plan: each move comes before the first call of its operator."""
    count = len(trace.problem.operators)
    first: dict[int, int] = {}
    for at, call in enumerate(calls):
        if call.operator is not None:
            first.setdefault(trace.positions[call.operator], at)
    first[0] = 0
    found: dict[int, list[Move]] = {}
    # In this order: what is stored, what leaves after its copy, what comes into the room.
    for store in moves.stores:
        found.setdefault(first[store.at], []).append(("store", trace.blocks[store.block]))
    for absence in moves.absences:
        found.setdefault(first[absence.gone_at], []).append(("evict", trace.blocks[absence.block]))
    for absence in moves.absences:
        at = first[absence.load_at % count]
        found.setdefault(at, []).append(("load", trace.blocks[absence.block]))
    return Schedule(calls, found)


class Follower:
    """Position of a running step in its schedule."""

    def __init__(self, schedule: Schedule, memory: PagedMemory) -> None:
        self.schedule, self.memory = schedule, memory
        self.at = 0
        self.strange = 0
        self.matched = 0
        self.lost = False
        self.pages: dict[int, Page] = {}
        self._late: list[int] = []

    def begin(self) -> None:
        """Begin a new step at the start of the schedule."""
        self.at = self.strange = self.matched = 0
        self.lost = False
        self._late.clear()

    def expect(self, key: Hashable) -> RecordedCall | None:
        """Make the moves before a call, and return the recorded call that it is; None of a stranger."""
        if self.lost:
            return None
        calls = self.schedule.calls
        if self.at >= len(calls) or calls[self.at].key != key:
            places = self.schedule.places.get(key, ())
            later = bisect_right(places, self.at)
            if later == len(places) or places[later] - self.at > _WINDOW:
                self.strange += 1
                self.lost = self.strange > _WINDOW
                return None
            while self.at < places[later]:
                self._move()
                self.at += 1
        self.strange = 0
        self.matched += 1
        self._move()
        self.at += 1
        return calls[self.at - 1]

    def is_next(self, key: Hashable) -> bool:
        """Return whether the next recorded call has this key."""
        return self.at < len(self.schedule.calls) and self.schedule.calls[self.at].key == key

    def pass_by(self) -> RecordedCall:
        """Pass the next recorded call and return it, while another plan is followed."""
        self.at += 1
        self.matched += 1
        return self.schedule.calls[self.at - 1]

    def is_now(self, number: int, page: Page) -> None:
        """Note that the page is that recorded storage from now on."""
        self.pages[number] = page

    def victim(self, pages: Iterator[Page]) -> Page | None:
        """Pick the page whose next use is farthest away."""
        return max(pages, key=self._next_use, default=None)

    def _next_use(self, page: Page) -> float:
        """Number of calls until the next use of a page; one that is not used again comes last of all."""
        if page.number is None or self.pages.get(page.number) is not page:
            return 2.0 * len(self.schedule.calls)
        uses = self.schedule.uses.get(page.number, [])
        place = bisect_right(uses, self.at - 1)
        if place < len(uses):
            return uses[place] - self.at
        if page.number in self.schedule.born:  # the next step makes its own
            return 2.0 * len(self.schedule.calls)
        return len(self.schedule.calls) + uses[0] - self.at

    def _move(self) -> None:
        for number in [n for n in self._late if self._is_there(n)]:
            self._late.remove(number)
        for what, number in self.schedule.moves.get(self.at, ()):
            page = self.pages.get(number)
            if page is None or page.dead:
                continue
            if what == "store":
                self.memory.store(page)
            elif what == "evict":
                self.memory.evict(page)
            elif not self.memory.prefetch(page):
                self.memory.counts.late += 1
                self._late.append(number)
        self.memory.settle()

    def _is_there(self, number: int) -> bool:
        """Return whether a load that had no room is done, or not needed any more; it is tried again here."""
        page = self.pages.get(number)
        return page is None or page.dead or self.memory.prefetch(page)


class Shapes:
    """Followers of plans, by the shape of the step; ``active`` is followed, None: there is no plan."""

    def __init__(self) -> None:
        self.active: Follower | None = None
        self._known: OrderedDict[Shape, Follower] = OrderedDict()
        self._next: dict[Follower, Follower] = {}
        self._last: Follower | None = None
        self._candidates: list[Follower] = []
        self._expected: list[tuple[Follower, RecordedCall]] = []
        self._strange = 0

    def __contains__(self, shape: Shape) -> bool:
        return shape in self._known

    def add(self, shape: Shape, follower: Follower) -> None:
        """Add a plan; the step that begins now may have its shape."""
        self._known[shape] = follower
        if self._last is not None:
            self._next[self._last] = follower
        if len(self._known) > MOST_SHAPES:
            _, dropped = self._known.popitem(last=False)
            self._next = {a: b for a, b in self._next.items() if dropped not in (a, b)}
        self._last = follower
        self._start(self._next.get(follower, follower))

    def forget(self) -> None:
        """Forget all plans, so that none is followed."""
        self._known.clear()
        self._next.clear()
        self._candidates.clear()
        self._expected.clear()
        self.active = self._last = None

    def begin(self, *, followed: bool) -> None:
        """End a step, which had the active plan's shape if it ``followed`` it, and begin the next one."""
        if self.active is None:
            return
        if followed:
            shape = next(shape for shape, follower in self._known.items() if follower is self.active)
            self._known.move_to_end(shape)
            if self._last is not None:
                self._next[self._last] = self.active
            self._last = self.active
        self._start(self._next.get(self.active, self.active))

    def expect(self, key: Hashable) -> RecordedCall | None:
        """Make the moves before a call, and return the active plan's recorded call that it is; None of a stranger."""
        self._expected.clear()
        if self.active is None:
            return None
        if len(self._candidates) > 1:
            alike = [follower for follower in self._candidates if follower.is_next(key)]
            if not alike and self._strange < _STRANGE:  # a call of the user's, before the step's own begin
                self._strange += 1
                return None
            if alike and self.active not in alike:
                self._activate(alike[-1])
            self._candidates = alike or [self.active]
            for follower in self._candidates:
                if follower is not self.active:
                    self._expected.append((follower, follower.pass_by()))
        found = self.active.expect(key)
        if found is not None:
            self._expected.append((self.active, found))
        return found

    def ran(self, pages: Sequence[Page | None], born: Sequence[Page | None]) -> None:
        """Tell the plans which pages the expected call used and made."""
        for follower, call in self._expected:
            for number, page in zip((*call.operands, *call.births), (*pages, *born), strict=False):
                if page is not None and number is not None:
                    follower.is_now(number, page)
                    if follower is self.active:
                        page.number = number

    def _start(self, guess: Follower) -> None:
        for follower in self._known.values():
            follower.begin()
        self._candidates = list(self._known.values())
        self._strange = 0
        self._activate(guess)

    def _activate(self, follower: Follower) -> None:
        self.active = follower
        for number, page in follower.pages.items():
            page.number = number
