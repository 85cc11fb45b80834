"""A candidate of the search for one size: form, number of chunks, sketch, and the best schedule so far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from loadmaster.models.collective.bounds import Bound
from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.plan import Form, Send, Unreachable
from loadmaster.models.collective.problem import Sketch
from loadmaster.planner.collective.greedy import Searcher


@dataclass
class Whole:
    """The chunks of one form and chunk count on everything that the problem allows, and what is proved of them.

    Attributes:
        instance: schedules are checked in it.
        cut: why there is no schedule; None: there is one.
        prove: a bound of these chunks in this form alone.
    """

    instance: Instance
    cut: Unreachable | None
    prove: Callable[[], Bound]

    @cached_property
    def bound(self) -> Bound:
        """Lower bound, proved when it is first asked for: the classic algorithms do not wait for it."""
        return self.prove()


@dataclass
class Candidate:
    """One form, chunk count and sketch; what they make of the problem, and the best schedule of it so far.

    Attributes:
        instance: what schedules are looked for in.
        whole: what all sketches of this form and chunk count share.
        searcher: list scheduling in ``instance``; each turn goes on where the last one stopped.
        is_exhausted: list scheduling gave up before its time was up.
    """

    form: Form
    chunk_count: int
    sketch: Sketch
    instance: Instance
    whole: Whole
    sends: tuple[Send, ...] | None = None
    time_ns: int = 0
    method: str = ""
    searcher: Searcher | None = None
    is_exhausted: bool = False

    @property
    def bound(self) -> Bound:
        """Lower bound of every schedule of this form and chunk count."""
        return self.whole.bound
