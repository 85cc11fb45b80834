"""Problem and plan documents: the JSON envelope that every kind shares, its reading and its errors.

A document is ``{"schema": "loadmaster/problem/1", "kind": ..., ...}``; the other fields are those of the kind's
dataclass, whose annotations (:mod:`loadmaster.models.fields`) are the rules. Unknown fields are refused, versions are
checked, and every refusal is an :class:`~loadmaster.errors.InputError` that names the field. The kinds
themselves are listed in :mod:`loadmaster.models.kinds`.

pydantic is imported by the first document that is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from loadmaster.errors import InputError
from loadmaster.models.canonical import plain
from loadmaster.models.json_text import dump_json, parse_json

if TYPE_CHECKING:
    from pydantic_core import SchemaValidator

PROBLEM_SCHEMA = "loadmaster/problem/1"
PLAN_SCHEMA = "loadmaster/plan/1"
MEASUREMENT_SCHEMA = "loadmaster/measurement/1"
# More than any measurement takes within the limits of its kind.
LARGEST_MEASUREMENT_BYTES = 1 << 20

Document = Mapping[str, Any]
ReadT = TypeVar("ReadT")
ProblemT = TypeVar("ProblemT")
PlanT = TypeVar("PlanT")

_VALIDATORS: dict[type[Any], SchemaValidator] = {}
# Types of schemas whose reading stops at the first wrong item.
_STOPPING = frozenset({"list", "tuple", "set", "frozenset"})


def load_document(source: Document | str | Path) -> Document:
    """Load a document from a mapping (returned as it is) or from a JSON file. Raises InputError if the file is missing,
    is not JSON, or is not an object."""
    if isinstance(source, Mapping):
        return source
    path = Path(source)

    def refused(_: object, problem: str) -> InputError:
        return InputError("path", str(path), problem, "Give the path of a JSON document.")

    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise refused(None, "no such file") from None
    except IsADirectoryError:
        raise refused(None, "is a directory") from None
    except OSError as error:
        raise refused(None, f"cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise refused(None, f"is no path: {error}") from None
    return parse_json(content, refused)


def expect_schema(document: Document, schema: str) -> None:
    """Refuse a document of another schema or version; the InputError says what was found and what is read."""
    found = document.get("schema")
    if found == schema:
        return
    family = schema.rsplit("/", 1)[0]
    if isinstance(found, str) and found.rsplit("/", 1)[0] == family:
        raise InputError("schema", found, "is a version this Loadmaster does not read", f"It reads {schema}.")
    raise InputError("schema", found, "is not the expected schema", f"Give a document with schema {schema}.")


def expect_problem(plan_problem_sha256: str, problem_sha256: str) -> None:
    """Refuse a plan of another problem; the InputError names both."""
    if plan_problem_sha256 != problem_sha256:
        raise InputError(
            "problem_sha256",
            plan_problem_sha256,
            f"is another problem's (this one is {problem_sha256})",
            "Plan this problem again, or give the problem the plan was made for.",
        )


def read(type_: type[ReadT], schema: str, document: Document) -> ReadT:
    """Read a dataclass from its document; raise InputError for another schema, unknown fields, values out of range."""
    expect_schema(document, schema)
    return parse(type_, {"kind": None, **{name: value for name, value in document.items() if name != "schema"}})


def write(schema: str, value: Any) -> dict[str, Any]:
    """Write the document of a dataclass; short fields come first, so that its head says what it is."""
    fields = plain(value)
    short_first = sorted(fields.items(), key=lambda item: isinstance(item[1], dict | list))
    return {"schema": schema, "kind": fields["kind"], **dict(short_first)}


@dataclass(frozen=True)
class KindDocuments(Generic[ProblemT, PlanT]):
    """Reader and writer of one kind's documents: what is written reads back as an equal problem or plan.

    Attributes:
        check_problem: refuses (InputError) problems whose fields do not fit together.
        check_plan: the same for plans, as far as the fields alone tell; the rest is for the kind's checker.
    """

    problem: type[ProblemT]
    plan: type[PlanT]
    check_problem: Callable[[ProblemT], None]
    check_plan: Callable[[PlanT], None] | None = None

    def read_problem(self, document: Document) -> ProblemT:
        """Read a problem from its document; raise InputError as :func:`read`, or by ``check_problem``."""
        problem = read(self.problem, PROBLEM_SCHEMA, document)
        self.check_problem(problem)
        return problem

    def write_problem(self, problem: ProblemT) -> dict[str, Any]:
        """Write the document of a problem."""
        return write(PROBLEM_SCHEMA, problem)

    def read_plan(self, document: Document) -> PlanT:
        """Read a plan from its document, without a replay; raise InputError as :func:`read`, or by ``check_plan``."""
        plan = read(self.plan, PLAN_SCHEMA, document)
        if self.check_plan is not None:
            self.check_plan(plan)
        return plan

    def write_plan(self, plan: PlanT) -> dict[str, Any]:
        """Write the document of a plan."""
        return write(PLAN_SCHEMA, plan)


def expect_with_status(plan: Any, *fields: str) -> None:
    """Refuse an infeasible plan that has one of these fields, and any other that lacks one, naming the field."""
    for field in fields:
        value = getattr(plan, field)
        if (value is None) != (plan.status == "infeasible"):
            remedy = f"An infeasible plan has neither {' nor '.join(fields)}, any other plan has them."
            raise InputError(field, value, f"does not go with status {plan.status}", remedy)


def _validator(type_: type[Any]) -> SchemaValidator:
    """Return the validator of a type; made once, because making it takes as long as reading a large document."""
    from pydantic import TypeAdapter
    from pydantic_core import SchemaValidator

    if type_ not in _VALIDATORS:
        _VALIDATORS[type_] = SchemaValidator(_stopping(TypeAdapter(type_).core_schema))
    return _VALIDATORS[type_]


def _stopping(schema: Any) -> Any:
    """Change a core schema so that the validation of a list stops at its first wrong item. One error is reported, but
    pydantic collects all, each a kilobyte: those of a million wrong items would fill the memory."""
    if isinstance(schema, list):
        return [_stopping(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {name: part if name in ("default", "metadata") else _stopping(part) for name, part in schema.items()}
    return {**parts, "fail_fast": True} if schema.get("type") in _STOPPING else parts


def parse(type_: type[ReadT], document: Document) -> ReadT:
    """Validate a document against a dataclass or a pydantic model; InputError is the first refusal, and counts
    others."""
    from pydantic import ValidationError

    # As JSON text, not as Python objects: there a list may stand for a tuple or a set, and nothing else may.
    text = dump_json(document)
    try:
        read: ReadT = _validator(type_).validate_json(text)
        return read
    except ValidationError as error:
        details = error.errors(include_url=False)
    first = details[0]
    if first["type"] == "json_invalid":
        parse_json(text.encode(), lambda found, problem: InputError("document", found, problem, "Correct it."))
    reason = first.get("ctx", {}).get("error")
    if isinstance(reason, InputError):
        raise reason
    field = field_path(first["loc"]) or "document"
    more = f" ({len(details) - 1} more fields are wrong too)" if len(details) > 1 else ""
    kind = first["type"]
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        problem, remedy = "is not a field of this document", "Remove it, or check its spelling."
    elif kind == "missing":
        problem, remedy = "is missing", "Add it."
    else:
        problem, remedy = first["msg"][:1].lower() + first["msg"][1:], "Correct the value."
    raise InputError(field, None if kind == "missing" else first.get("input"), problem + more, remedy)


def field_path(location: tuple[int | str, ...]) -> str:
    """Write the path of a field: ``("forward", 3, "inputs")`` as ``forward[3].inputs``."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else (f".{part}" if path else part)
    return path
