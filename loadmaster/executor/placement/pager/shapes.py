"""The plans of the shapes that a step has: one for each that came back, the least recently used dropped.

Which shape a step has is known when its calls are. Until they differ, the plan is followed of the shape that came after
the last one before; then that of the shape whose calls these are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

from loadmaster.executor.placement.pager.memory import Page
from loadmaster.executor.placement.pager.schedule import Call, Follower

MOST_SHAPES = 8
"""Most shapes that have plans, or recordings that wait for another of their shape."""

_STRANGE = 64  # calls of no plan, at most, before a step is taken for one of the last shape

Shape = Hashable


class Shapes:
    """Followers of plans, by the shape of the step.

    Attributes:
        active: the one that is followed; None: there is no plan.
    """

    def __init__(self) -> None:
        self.active: Follower | None = None
        self._known: OrderedDict[Shape, Follower] = OrderedDict()
        self._next: dict[Follower, Follower] = {}
        self._last: Follower | None = None
        self._candidates: list[Follower] = []
        self._expected: list[tuple[Follower, Call]] = []
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
        """End a step and begin the next one.

        Args:
            followed: whether the step had the active plan's shape.
        """
        if self.active is None:
            return
        if followed:
            shape = next(shape for shape, follower in self._known.items() if follower is self.active)
            self._known.move_to_end(shape)
            if self._last is not None:
                self._next[self._last] = self.active
            self._last = self.active
        self._start(self._next.get(self.active, self.active))

    def expect(self, key: Hashable) -> Call | None:
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
