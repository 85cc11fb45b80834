"""The seam between the service and the planner floor: all that server and workers ask of planning.

``Settings.planner`` names the class, so that another way of planning (in tests, or on another machine) can take
its place without the service knowing.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from loadmaster import planner
from loadmaster.errors import InputError, MissingExtraError
from loadmaster.models import kinds
from loadmaster.models.documents import Document
from loadmaster.models.kind import Problem
from loadmaster.planner import PlanOptions, PlanProgress
from loadmaster.solvers import registry

__all__ = ["FloorPlanner", "Planner", "Request", "load_planner"]


@dataclass(frozen=True)
class Request:
    """A submission that was read and found good.

    Attributes:
        options: complete, with the defaults filled in.
        cache_key: equal for requests that have the same answers.
        limit: of the problem's kind, in its unit; None for kinds without one.
        sizes: how large the problem is, by what it consists of.
        unit: of objectives, where it is known before there is a plan.
    """

    kind: str
    name: str
    options: Mapping[str, Any]
    gap: float
    time_limit_s: float
    limit: int | None
    cache_key: str
    sizes: Mapping[str, int]
    unit: str | None = None


class Planner(Protocol):
    """The service's interface to planning. One instance serves many threads."""

    def read(self, problem: Document, options: Document) -> Request:
        """Validate a submission. Raises InputError with a field that starts with ``problem`` or ``options``."""
        ...

    def read_each(self, problem: Document, options: Sequence[Document]) -> list[Request]:
        """Validate one problem under several options, as :meth:`read`. The problem is read once: it may be large."""
        ...

    def plan(
        self,
        problem: Document,
        options: Document,
        *,
        on_progress: Callable[[PlanProgress], None],
        cancelled: Callable[[], bool],
    ) -> dict[str, Any]:
        """Plan, and give the plan's document. Raises any LoadmasterError."""
        ...

    def document(self, plan: Any) -> dict[str, Any]:
        """The document of a plan that a report makes (:attr:`PlanProgress.plan`)."""
        ...


class FloorPlanner:
    """The planner floor in this process."""

    def read(self, problem: Document, options: Document) -> Request:
        return self.read_each(problem, [options])[0]

    def read_each(self, problem: Document, options: Sequence[Document]) -> list[Request]:
        each = [PlanOptions.from_document(one) for one in options]
        for asked in each:
            _expect_solver(asked.solver)
        try:
            typed = kinds.read_problem(problem)
        except InputError as error:
            raise InputError(f"problem.{error.field}", error.value, error.problem, error.remedy) from None
        return [self._settled(typed, asked) for asked in each]

    def _settled(self, typed: Problem, asked: PlanOptions) -> Request:
        # From here on the limit is in one place only: what identifies a problem leaves its own out.
        asked = planner.settled(typed, asked)
        limit = asked.given_limit
        assert not isinstance(limit, str), "settled options have a number"
        return Request(
            kind=typed.kind,
            name=typed.name,
            options=asked.to_document(),
            gap=asked.gap,
            time_limit_s=asked.wall_s,
            limit=limit,
            cache_key=planner.cache_key(typed, asked),
            sizes=typed.sizes,
            unit=typed.unit,
        )

    def plan(
        self,
        problem: Document,
        options: Document,
        *,
        on_progress: Callable[[PlanProgress], None],
        cancelled: Callable[[], bool],
    ) -> dict[str, Any]:
        asked = PlanOptions.from_document(options)
        plan = planner.plan(kinds.read_problem(problem), asked, on_progress=on_progress, cancelled=cancelled)
        return kinds.write_plan(plan)

    def document(self, plan: Any) -> dict[str, Any]:
        return kinds.write_plan(plan)


@functools.cache  # what is there stays; to look costs imports' lock
def _expect_solver(name: str) -> None:
    """Refuse a solver that is not installed here, before a worker finds out."""
    missing = InputError("options.solver", name, "is not installed here", "Use one that /v1/solvers lists.")
    try:
        full = registry.resolve(name)
    except MissingExtraError:
        raise missing from None
    except InputError as error:
        raise InputError(f"options.{error.field}", error.value, error.problem, error.remedy) from None
    # PuLP knows many solvers that are not there.
    if full.startswith("pulp:") and full not in {solver.name for solver in registry.available()}:
        raise missing


def load_planner(path: str) -> Planner:
    """An instance of the planner named ``module:name``. Raises InputError if the module or the name in it does not
    exist."""
    module, _, name = path.partition(":")
    try:
        return cast(Planner, getattr(importlib.import_module(module), name)())
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError("planner", path, f"cannot be loaded: {error}", "Give module:name of a planner.") from None
