"""Bytes that came over the wire, as a document that the rest can trust.

Nothing that comes in may end the server: not deep nesting, not numbers no machine type holds, not invalid text.
All of it is refused here, as an InputError that names the place.
"""

from __future__ import annotations

from typing import Any, TypeVar

from loadmaster.api.documents import PlanRequest
from loadmaster.errors import InputError
from loadmaster.models import documents
from loadmaster.models.json_text import parse_json

__all__ = ["MOST_VALUES", "count_values", "parse_body", "parse_object"]

# Lists, objects, and what is in them, as commas and brackets tell; those within text count as well. They take half a
# gigabyte as objects.
MOST_VALUES = 5_000_000
# An object takes as much memory as so many numbers.
_OBJECT_VALUES = 4

# Of one object. Every key that nobody knows is a refusal of its own, of a kilobyte.
MOST_KEYS = 100_000

RequestT = TypeVar("RequestT", bound=PlanRequest)


def parse_body(model: type[RequestT], body: bytes) -> RequestT:
    """Read a body as the model, or raise an InputError that names what is wrong with it."""
    document = parse_object(body, "body")
    problem = document.get("problem")
    if not isinstance(problem, dict):
        return documents.parse(model, document)
    # Whoever reads the problem checks it; here it would be copied.
    request = documents.parse(model, {**document, "problem": {}})
    return request.model_copy(update={"problem": problem})


def parse_object(content: bytes, field: str) -> dict[str, Any]:
    """Read a JSON object that is safe to use, or raise an InputError that names ``field``."""

    def refused(value: object, problem: str) -> InputError:
        return InputError(field, value, problem, "Send one JSON object, in UTF-8.")

    # Before it is read: an empty list is two bytes here and eighty as an object.
    values = count_values(content)
    if values > MOST_VALUES:
        raise InputError(field, values, "is about as many values as no problem has", f"Send {MOST_VALUES} at most.")
    document = parse_json(content, refused)
    _expect_few_keys(document, field)
    return document


def count_values(text: bytes) -> int:
    """Estimate how many values there are in JSON, objects by what they take."""
    return text.count(b",") + text.count(b"[") + _OBJECT_VALUES * text.count(b"{")


def _expect_few_keys(document: dict[str, Any], field: str) -> None:
    left: list[Any] = [document]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            if len(value) > MOST_KEYS:
                raise InputError(field, len(value), "is more keys than an object has", f"Send {MOST_KEYS} at most.")
            value = value.values()
        left += [part for part in value if isinstance(part, dict | list)]
