"""Problem and plan documents: the JSON envelope that every kind shares, how it is read and refused.

A document is ``{"schema": "loadmaster/problem/1", "kind": ..., ...}``. Unknown fields are refused, versions are
checked, and every refusal is an :class:`~loadmaster.errors.InputError` that names the field. The kinds
themselves are listed in :mod:`loadmaster.models.kinds`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from loadmaster.errors import InputError

PROBLEM_SCHEMA = "loadmaster/problem/1"
PLAN_SCHEMA = "loadmaster/plan/1"

Document = Mapping[str, Any]
ModelT = TypeVar("ModelT", bound=BaseModel)


class StrictModel(BaseModel):
    """Base of all document models: unknown fields refused, no silent conversion of text to numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def load_document(source: Document | str | Path) -> Document:
    """A document from a mapping (returned as it is) or from a JSON file.

    Raises:
        InputError: the file is missing, is not JSON, or is not an object.
    """
    if isinstance(source, Mapping):
        return source
    path = Path(source)
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise InputError("path", str(path), "no such file", "Give the path of a JSON document.") from None
    except IsADirectoryError:
        raise InputError("path", str(path), "is a directory", "Give the path of a JSON document.") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError("path", str(path), f"is not JSON: {error}", "Give a JSON document.") from None
    if not isinstance(document, dict):
        raise InputError("path", str(path), "holds no JSON object", "Give a document: an object with schema and kind.")
    return document


def expect_schema(document: Document, schema: str) -> None:
    """Refuse a document of another schema or version.

    Raises:
        InputError: naming what was found and what this version reads.
    """
    found = document.get("schema")
    if found == schema:
        return
    family = schema.rsplit("/", 1)[0]
    if isinstance(found, str) and found.rsplit("/", 1)[0] == family:
        raise InputError("schema", found, "is a version this Loadmaster does not read", f"It reads {schema}.")
    raise InputError("schema", found, "is not the expected schema", f"Give a document with schema {schema}.")


def expect_problem(plan_problem_sha256: str, problem_sha256: str) -> None:
    """Refuse a plan of another problem.

    Raises:
        InputError: naming both.
    """
    if plan_problem_sha256 != problem_sha256:
        raise InputError(
            "problem_sha256",
            plan_problem_sha256,
            f"is another problem's (this one is {problem_sha256})",
            "Plan this problem again, or give the problem the plan was made for.",
        )


def parse(model: type[ModelT], document: Document) -> ModelT:
    """Validate a document against its pydantic model.

    Raises:
        InputError: for the first refusal; its message counts the others.
    """
    try:
        return model.model_validate(dict(document))
    except ValidationError as error:
        details = error.errors(include_url=False)
        first = details[0]
        field = field_path(first["loc"]) or "document"
        more = f" ({len(details) - 1} more fields are wrong too)" if len(details) > 1 else ""
        kind = first["type"]
        if kind == "extra_forbidden":
            problem, remedy = "is not a field of this document", "Remove it, or check its spelling."
        elif kind == "missing":
            problem, remedy = "is missing", "Add it."
        else:
            problem, remedy = first["msg"][:1].lower() + first["msg"][1:], "Correct the value."
        raise InputError(field, None if kind == "missing" else first.get("input"), problem + more, remedy) from None


def field_path(location: tuple[int | str, ...]) -> str:
    """``("forward", 3, "inputs")`` as ``forward[3].inputs``."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else (f".{part}" if path else part)
    return path
