"""The best plan of a search while it goes on, handed to the worker now and then by the process of the job.

A plan is made where the planner has a word for its caller, so in its own time. That is kept short: none is made in the
first second, two are seconds apart, and after one there is no other until its making, packing and sending are less than
a hundredth of the time that went by. So the search loses one percent, and of a plan that takes long the first making.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Any, Protocol

from loadmaster.api.packed import pack
from loadmaster.errors import CheckFailedError
from loadmaster.models.documents import Document
from loadmaster.planner import PlanProgress

__all__ = ["BestPlans", "Parent"]

logger = logging.getLogger(__name__)

FIRST_AFTER_S = 1.0
EVERY_S = 2.0
SHARE = 0.01


class Parent(Protocol):
    """The connection to the worker, which is told of plans."""

    def progress(self, progress: PlanProgress) -> None: ...

    def cancelled(self) -> bool: ...

    def send(self, kind: str, content: Any) -> None: ...


class BestPlans:
    """The link between planner and parent: passes on what both say, and better plans when they are due. ``document``
    makes one of a report's plan."""

    def __init__(self, parent: Parent, document: Callable[[Any], Document]) -> None:
        self._parent, self._document = parent, document
        self._seen: Callable[[], Any] | None = None
        self._waiting: Callable[[], Any] | None = None
        self._sent = math.inf
        self._due = time.monotonic() + FIRST_AFTER_S

    def progress(self, progress: PlanProgress) -> None:
        """Pass on a report of the planner, and send its plan if one is due."""
        self._parent.progress(progress)
        if progress.plan is not self._seen:
            self._seen = self._waiting = progress.plan
        self._send_if_due()

    def cancelled(self) -> bool:
        """Return whether the job is cancelled; the planner asks often, and a plan that waited is sent then."""
        if self._parent.cancelled():
            # What there is comes at once.
            return True
        self._send_if_due()
        return False

    def _send_if_due(self) -> None:
        if self._waiting is None or time.monotonic() < self._due:
            return
        make, self._waiting = self._waiting, None
        began = time.monotonic()
        try:
            document = self._document(make())
            if document["objective"] < self._sent:
                self._sent = document["objective"]
                self._parent.send("best_plan", (self._sent, pack(document)))
        except (CheckFailedError, MemoryError) as error:
            # The search is not at fault, and its answer is checked by itself.
            logger.error("no more plans are handed over before the end: %s", str(error) or "out of memory")
            self._due = math.inf
            return
        now = time.monotonic()
        self._due = now + max(EVERY_S, (now - began) / SHARE)
