"""Candidates of the search for one size, made when their turn comes, and the whole problems that they share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from loadmaster.errors import InputError
from loadmaster.models.collective.bounds import Bound, lower_bound
from loadmaster.models.collective.collectives import forms_of, instance_of, named_chunk_counts
from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.plan import Form, Send, Unreachable
from loadmaster.models.collective.problem import CollectiveProblem, Sketch
from loadmaster.models.collective.reach import unreachable
from loadmaster.planner.collective.greedy import Combining
from loadmaster.planner.collective.restarts import Restarts
from loadmaster.planner.collective.sketches import candidates, chunk_counts
from loadmaster.planner.effort import Effort


@dataclass
class Whole:
    """The chunks of one form and chunk count on everything that the problem allows, and what is proved of them.
    Schedules are checked in ``instance``; ``cut`` says why there is none (None: there is one); ``prove`` bounds these
    chunks in this form alone."""

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
        instance: schedules are looked for in it.
        whole: shared by all sketches of this form and chunk count.
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
    searcher: Combining | Restarts | None = None
    is_exhausted: bool = False

    @property
    def bound(self) -> Bound:
        """Lower bound of every schedule of this form and chunk count."""
        return self.whole.bound


# Of the time of a size, the most that symmetries are looked for, and that bounds of one form and number of chunks take.
SYMMETRY_SHARE, BOUND_SHARE = 0.2, 0.2


class Candidates:
    """Iterable of the candidates of one size, to be gone through once. ``clock`` starts a clock for a share of this
    size's time; ``proved`` is the bound of a form, for every number of chunks."""

    def __init__(
        self,
        problem: CollectiveProblem,
        size_bytes: int,
        effort: Effort,
        clock: Callable[[float], Callable[[], bool]],
        proved: Callable[[Form], Bound],
    ) -> None:
        self.problem, self.size_bytes, self.effort = problem, size_bytes, effort
        self._clock, self._proved = clock, proved
        self._wholes: dict[tuple[Form, int], Whole] = {}

    def __iter__(self) -> Iterator[Candidate]:
        """Yield candidates, the plainest first; what does not divide is left out unless it was asked for."""
        problem = self.problem
        tried = []
        for place, sketch in enumerate(candidates(problem, self._clock(SYMMETRY_SHARE))):
            for form in forms_of(problem):
                counts = chunk_counts(problem, self.size_bytes, form, sketch)
                tried += [(place + turn, form, count, sketch) for turn, count in enumerate(counts)]
        tried.sort(key=lambda choice: choice[0])
        for _, form, chunk_count, sketch in tried:
            with self.effort.on_clock("build"):
                candidate = self._candidate(form, chunk_count, sketch)
            if candidate is not None:
                yield candidate

    def classic(self, form: Form, chunk_count: int) -> Candidate:
        """Candidate of a classic algorithm, without symmetries: classics are not their own images under a sketch's."""
        whole = self.whole(form, chunk_count)
        return Candidate(form, chunk_count, Sketch("classic"), whole.instance.without_symmetry(), whole)

    def fewest(self, form: Form) -> int:
        """Fewest chunks of a form: the number that is tried first."""
        return chunk_counts(self.problem, self.size_bytes, form)[0]

    def whole(self, form: Form, chunk_count: int) -> Whole:
        """Instance of a form and chunk count with its bound, made once for all sketches."""
        if (form, chunk_count) not in self._wholes:
            instance = instance_of(self.problem, self.size_bytes, chunk_count, form)
            alone = len(named_chunk_counts(self.problem)) == 1

            def bound() -> Bound:
                if alone:
                    # What is proved of a form's only number of chunks is known already.
                    return self._proved(form)
                with self.effort.on_clock("build"):
                    return lower_bound(instance, over=self._clock(BOUND_SHARE))

            self._wholes[form, chunk_count] = Whole(instance, unreachable(instance), bound)
        return self._wholes[form, chunk_count]

    def _candidate(self, form: Form, chunk_count: int, sketch: Sketch) -> Candidate | None:
        """Build a candidate; None where an automatic sketch has symmetries that this form has not."""
        whole = self.whole(form, chunk_count)
        if sketch is self.problem.sketch:
            return Candidate(form, chunk_count, sketch, whole.instance, whole)
        try:
            instance = instance_of(self.problem, self.size_bytes, chunk_count, form, sketch)
        except InputError:
            return None
        return Candidate(form, chunk_count, sketch, instance, whole)
