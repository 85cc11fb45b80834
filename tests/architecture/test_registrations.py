"""What the registry of kinds names as text exists, and takes and returns what those who call it give and expect."""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from inspect import Parameter, signature
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from loadmaster.api.cli.build import New
from loadmaster.api.report.extras import Extras
from loadmaster.api.report.views import Simulated, Views
from loadmaster.models.documents import Document
from loadmaster.models.envelope import Plan
from loadmaster.models.kind import Documents, Kind, Problem, Verdict, resolve
from loadmaster.models.kinds import KINDS
from loadmaster.models.statements import Statements
from loadmaster.models.summary import Summary
from loadmaster.planner.options import PlanOptions, PlanProgress
from loadmaster.planner.sweep import Price

every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def alternatives(annotation: Any) -> tuple[Any, ...]:
    """Members of a union; the annotation itself where it is none."""
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def members(protocol: type) -> set[str]:
    return {name for name in vars(protocol) if not name.startswith("_")}


def fits(given: Any, wanted: Any) -> bool:
    """Whether all that has one annotation may stand where another one is asked for."""
    if wanted in (Any, object) or given is Any or given == wanted or (given, wanted) == (int, float):
        return True
    if len(alternatives(given)) > 1 or len(alternatives(wanted)) > 1:
        return all(any(fits(one, other) for other in alternatives(wanted)) for one in alternatives(given))
    concrete, asked = get_origin(given) or given, get_origin(wanted) or wanted
    if getattr(asked, "_is_protocol", False):
        return members(asked) <= {*dir(concrete), *get_type_hints(concrete)}
    if not (isinstance(concrete, type) and isinstance(asked, type) and issubclass(concrete, asked)):
        return False
    pairs = zip(get_args(given), get_args(wanted), strict=False)
    return all(one is ... or fits(one, other) for one, other in pairs)


def test_fits_tells_annotations_apart() -> None:
    assert fits(list[int], Sequence[int]) and fits(int, int | None) and fits(bytes, bytes | Mapping[str, bytes])
    assert not fits(list[str], Sequence[int]) and not fits(int | None, int) and not fits(str, bytes)
    assert fits(types_of("memory")[1], Plan) and not fits(types_of("memory")[1], types_of("index")[1])
    assert fits(types_of("memory")[0], Problem) and not fits(Plan, Problem)


def expect(function: Callable[..., Any], takes: Sequence[Any], returns: Any, **keywords: Any) -> None:
    """Hold a function to a call with arguments of these annotations, and to what the caller takes its result for."""
    hints = get_type_hints(function)
    parameters = signature(function).parameters
    bound = signature(function).bind(*takes, **keywords)
    for name, given in bound.arguments.items():
        assert parameters[name].kind is not Parameter.VAR_KEYWORD, f"{function}: {name} takes whatever comes"
        assert fits(given, hints[name]), f"{function}: {name} is given {given}, takes {hints[name]}"
    assert fits(hints["return"], returns), f"{function} returns {hints['return']}, not {returns}"


def types_of(name: str) -> tuple[Any, Any, Any]:
    """The kind's problem, its plan and its verdict, as its checker names them."""
    hints = get_type_hints(resolve(KINDS[name].check))
    return hints["problem"], hints["plan"], hints["return"]


def expect_room(room: Any, protocol: type) -> None:
    """Hold a module to the functions of a protocol, by their parameters."""
    for name in members(protocol):
        asked, found = getattr(protocol, name), getattr(room, name)
        wanted = [p for p in signature(asked).parameters.values() if p.name != "self"]
        assert len(signature(found).parameters) == len(wanted), f"{room}: {name}"
        hints = get_type_hints(asked)
        expect(found, [hints[p.name] for p in wanted], hints["return"])


@every_kind
def test_problem_plan_and_verdict_are_what_all_kinds_have(kind: Kind) -> None:
    problem, plan, verdict = types_of(kind.name)
    assert fits(problem, Problem) and fits(plan, Plan) and fits(verdict, Verdict)
    for of in (problem, plan):
        assert next(field.default for field in fields(of) if field.name == "kind") == kind.name


@every_kind
def test_models_and_planner_have_what_is_registered(kind: Kind) -> None:
    problem, plan, verdict = types_of(kind.name)
    expect(resolve(kind.check), [problem, plan], verdict)
    expect(resolve(kind.validate), [problem], type(None))
    told, asked = Callable[[PlanProgress], None] | None, Callable[[], bool] | None
    expect(resolve(kind.plan), [problem, PlanOptions], plan, on_progress=told, cancelled=asked)
    if kind.statements is not None:
        found = resolve(kind.statements)
        assert isinstance(found, Statements)
        named = {re.split(r"[.\[]", name)[0] for name in (*found.decisions, *found.trusted)}
        assert named <= set(get_type_hints(plan))
    if kind.summary is not None:
        expect(resolve(kind.summary), [problem], Summary)
    if kind.measurement is not None:
        expect(resolve(kind.measurement), [Document, plan], object)


@every_kind
def test_documents_read_and_write_the_kinds_types(kind: Kind) -> None:
    problem, plan, _ = types_of(kind.name)
    room = resolve(kind.documents)
    expect_room(room, Documents)
    assert (room.DOCUMENTS.problem, room.DOCUMENTS.plan) == (problem, plan)
    assert room.DOCUMENTS.check_problem is resolve(kind.validate)
    expect(room.DOCUMENTS.check_plan, [plan], type(None))
    for name in members(Documents):
        assert getattr(room, name) == getattr(room.DOCUMENTS, name)


@every_kind
def test_limits_have_what_is_registered(kind: Kind) -> None:
    problem, plan, _ = types_of(kind.name)
    limit = kind.limit
    if limit is None:
        assert kind.simulate is None
        return
    assert fits(get_type_hints(plan, include_extras=False)[limit.field], int)
    assert fits(get_type_hints(problem, include_extras=False)[limit.field], int | None)
    expect(resolve(limit.whole), [problem], int)
    expect(resolve(limit.points), [problem, int], Sequence[int])
    if limit.with_bound is not None:
        expect(resolve(limit.with_bound), [plan, float | None, problem], plan)
    if limit.extras is not None:
        expect(resolve(limit.extras), [problem, Sequence[plan]], Extras)
    if limit.restrictions is not None:
        expect(resolve(limit.restrictions), [problem], dict[str, problem])
    if limit.prices is not None:
        told, asked = Callable[[PlanProgress], None] | None, Callable[[], bool] | None
        takes = [problem, plan, PlanOptions]
        expect(resolve(limit.prices), takes, Sequence[Price], others=Sequence[plan], on_progress=told, cancelled=asked)
    if kind.simulate is not None:
        expect(resolve(kind.simulate), [problem, list[str], int, plan | None], Simulated)


@every_kind
def test_the_api_has_what_is_registered(kind: Kind) -> None:
    problem, plan, verdict = types_of(kind.name)
    views = resolve(kind.views)
    expect_room(views, Views)
    expect_room(resolve(kind.new), New)
    view = get_type_hints(views.view)["return"]
    for name, takes in (("summary", [plan]), ("infeasible", [plan]), ("verdict", [plan, verdict]), ("details", [view])):
        expect(getattr(views, name), takes, str)
    expect(views.view, [problem, plan], view)
    for export in kind.exports:
        numbers = dict.fromkeys((number.name for number in export.numbers), int)
        expect(resolve(export.write), [view], Mapping[str, bytes] if export.suffix == "" else bytes, **numbers)


@pytest.mark.slow
@every_kind
def test_captures_are_commands(kind: Kind) -> None:
    if kind.capture is not None:
        expect(resolve(kind.capture), [Sequence[str]], int)


def test_nothing_that_is_registered_is_left_out_here() -> None:
    """A field of the registration that is a reference has a line above: these are all that look like one."""
    checked = {"documents", "validate", "check", "plan", "views", "new", "capture", "summary", "statements", "simulate"}
    checked |= {"measurement", "whole", "points", "with_bound", "extras", "restrictions", "prices", "write"}
    found = set()
    for kind in KINDS.values():
        for part in (kind, *kind.exports, *([] if kind.limit is None else [kind.limit])):
            of: Any = part
            found |= {f.name for f in fields(of) if str(getattr(of, f.name)).startswith("loadmaster.")}
    assert found == checked
