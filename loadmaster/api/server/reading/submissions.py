"""Requests to plan: read from their bytes, found good, and packed as the store keeps them.

All of this holds the interpreter for as long as it takes, seconds for a large body. It asks neither the store nor the
server anything, so that a process of its own can do it (:mod:`loadmaster.api.server.reading.readers`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadmaster.api.documents import FrontierRequest, PlanRequest
from loadmaster.api.packed import PackedDocument, pack
from loadmaster.api.planning import Planner, load_planner
from loadmaster.api.planning import Request as Planning
from loadmaster.api.server.reading.parsing import parse_body, parse_object
from loadmaster.errors import InputError
from loadmaster.models.documents import Document
from loadmaster.models.kinds import find_kind, limit_of
from loadmaster.planner.options import LIMIT_NAMES

__all__ = ["BLOB", "Asked", "NamedBlob", "Reader", "Submission", "read_submission"]

# The one key of what stands in the place of a problem.
BLOB = "blob_sha256"


@dataclass(frozen=True)
class Asked:
    """A request to plan as it came: the model of its body, and the blob that stands in the place of a problem, once it
    is known. ``dry_run``: nothing is to be kept of it."""

    model: type[PlanRequest]
    body: bytes
    dry_run: bool = False
    blob: bytes | None = None

    @property
    def size_bytes(self) -> int:
        return len(self.body) + len(self.blob or b"")


@dataclass(frozen=True)
class NamedBlob:
    """A request's blob in the place of its problem: the name that was given, whatever that is."""

    sha256: object


@dataclass(frozen=True)
class Submission:
    """A request to plan that was read and found good: a planning for each plan that is asked for, those of a frontier
    by ascending limit. ``problem`` is None for a dry run."""

    plannings: tuple[Planning, ...]
    problem: PackedDocument | None
    labels: Mapping[str, str]
    request_sha256: str


class Reader:
    """Reads requests to plan, with time limits up to ``longest_s``."""

    def __init__(self, planner: Planner, longest_s: float) -> None:
        self._planner, self._longest_s = planner, longest_s

    def read(self, asked: Asked) -> Submission | NamedBlob:
        """Read a request, or return the blob that it names, as long as its content is not known. Raises InputError."""
        request = parse_body(asked.model, asked.body)
        problem: Document = request.problem
        if set(problem) == {BLOB}:
            if asked.blob is None:
                return NamedBlob(problem[BLOB])
            problem = _blob_problem(asked.blob)
        if isinstance(request, FrontierRequest):
            option, limits = _limits(request, problem)
            each = self._plannings(problem, [{**request.options, option: limit} for limit in dict.fromkeys(limits)])
            # By the numbers that sizes and shares come to, each once.
            plannings = [planning for _, planning in sorted({p.limit or 0: p for p in each}.items())]
        else:
            plannings = self._plannings(problem, [request.options])
        # The same body may come to both endpoints.
        request_sha256 = hashlib.sha256(b"frontier\n" if isinstance(request, FrontierRequest) else b"plan\n")
        request_sha256.update(asked.body)
        packed = None if asked.dry_run else pack(problem)
        return Submission(tuple(plannings), packed, request.labels, request_sha256.hexdigest())

    def _plannings(self, problem: Document, options: Sequence[Document]) -> list[Planning]:
        try:
            plannings = self._planner.read_each(problem, options)
        except RecursionError:
            raise InputError("problem", "...", "is nested too deeply", "Send a problem document.") from None
        for planning in plannings:
            if planning.time_limit_s > self._longest_s:
                raise InputError(
                    "options.time_limit_s",
                    planning.time_limit_s,
                    "is more than this server allows",
                    f"Ask for at most {self._longest_s:g} seconds.",
                )
        return plannings


def read_submission(
    planner: str, longest_s: float, model: type[PlanRequest], dry_run: bool, body: bytes, blob: bytes | None = None
) -> Submission | NamedBlob:
    """Read a request to plan in a process that does nothing else: see :meth:`Reader.read`."""
    return Reader(load_planner(planner), longest_s).read(Asked(model, body, dry_run, blob))


def _blob_problem(blob: bytes) -> Document:
    field = f"problem.{BLOB}"
    try:
        return parse_object(blob, field)
    except InputError as error:
        # What is named by its place in the blob is at that place in the problem.
        where = error.field if error.field == field else f"problem.{error.field}"
        raise InputError(where, error.value, error.problem, error.remedy) from None


def _limits(request: FrontierRequest, problem: Document) -> tuple[str, list[int | str]]:
    """The option that each point gives, and its values. Raises InputError unless just one is given, the problem's kind
    has it, and the options give no limit, too."""
    given = {"limit": request.limits, "budget_bytes": request.budgets_bytes}
    (option, values), *more = [(name, values) for name, values in given.items() if values is not None] or [("", [])]
    if not values:
        raise InputError("limits", None, "is missing", "Give the limits to plan for, or budgets_bytes.")
    if more:
        raise InputError("limits", request.limits, "are given together with budgets_bytes", "Give one of them.")
    kind = problem.get("kind")
    # A kind that does not exist is left to whoever reads the problem.
    if find_kind(kind) is not None and limit_of(kind).field != option and option != "limit":
        raise InputError("budgets_bytes", values, f"mean nothing to {kind}", "Give limits.")
    for name in LIMIT_NAMES:
        if name in request.options:
            raise InputError(
                f"options.{name}",
                request.options[name],
                "is given together with the limits of the frontier",
                "Leave it out.",
            )
    return option, values
