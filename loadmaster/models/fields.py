"""Marks for the annotations of problems and plans: they say what the fields of documents may hold.

The dataclasses of every kind are read and written directly (:mod:`loadmaster.models.documents`); a mark says what a
value's type does not. pydantic asks each mark for its part of the schema when the first document is read: building a
typed problem, or writing one, needs no pydantic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, get_args

# One exbibyte: a size above it is a mistake in units, not a tensor.
LARGEST_BYTES = 1 << 60
# The largest integer that every reader of JSON can hold.
LARGEST_INTEGER = (1 << 63) - 1

# Limit of texts whose field states no length of its own: titles, places in the source, reasons.
LONGEST_TEXT = 4_000

# Configuration of pydantic for the dataclasses that name it, and those within them: unknown fields are refused, and
# text is not taken for a number.
READING: Mapping[str, Any] = {
    "extra": "forbid",
    "strict": True,
    "allow_inf_nan": False,
    "str_max_length": LONGEST_TEXT,
}


@dataclass(frozen=True)
class Bounds:
    """Mark of limits: least and greatest of a number, lengths of a text or a list, the pattern of a text."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: str | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**handler(source), **{name: bound for name, bound in given.items() if bound is not None}}


@dataclass(frozen=True)
class MayBeMissing:
    """Mark of a field that is None where a document leaves it out, though the class requires it."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return {"type": "default", "schema": handler(source), "default": None}


@dataclass(frozen=True)
class Ascending:
    """Mark of a set, written as a list: on reading, items are sorted, each once."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(lambda read: tuple(sorted(set(read))), handler(source))


@dataclass(frozen=True)
class AsText:
    """Mark of a whole number as a key: written as text, because JSON has no other keys; in one way only."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        written = core_schema.str_schema(pattern=r"^(0|[1-9][0-9]{0,3})$", strict=True)
        return core_schema.chain_schema([written, core_schema.no_info_plain_validator_function(int)])


@dataclass(frozen=True, eq=False)
class Entries:
    """Mark of a mapping of plain JSON values in which these entries, where present, have these types."""

    types: Mapping[str, Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        typed = {
            name: core_schema.typed_dict_field(handler.generate_schema(type_), required=False)
            for name, type_ in self.types.items()
        }
        others = handler.generate_schema(Json)
        return core_schema.typed_dict_schema(typed, extras_schema=others, extra_behavior="allow")


@dataclass(frozen=True)
class ToldBy:
    """Mark of a union of dataclasses, told apart by one of their fields, which has a default of its own in each."""

    field: str

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        schemas = {getattr(type_, self.field): handler.generate_schema(type_) for type_ in get_args(source)}
        return core_schema.tagged_union_schema(schemas, discriminator=self.field)


@dataclass(frozen=True)
class _Plain:
    """Mark of a value that every reader of JSON understands."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(_expect_plain)


def _expect_plain(value: Any) -> Any:
    from pydantic_core import PydanticCustomError

    left = [value]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            left += (*part, *part.values())
        elif isinstance(part, list):
            left += part
        elif isinstance(part, int) and abs(part) > LARGEST_INTEGER:
            raise PydanticCustomError("too_large", "Holds a whole number beyond 64 bits")
        elif isinstance(part, float) and not math.isfinite(part):
            raise PydanticCustomError("finite_number", "Holds a number that is not finite")
        elif isinstance(part, str) and len(part) > LONGEST_TEXT:
            raise PydanticCustomError("string_too_long", f"Holds a text of more than {LONGEST_TEXT} characters")
    return value


Size = Annotated[int, Bounds(ge=0, le=LARGEST_BYTES)]
PositiveSize = Annotated[int, Bounds(ge=1, le=LARGEST_BYTES)]
Index = Annotated[int, Bounds(ge=0, le=LARGEST_INTEGER)]
Name = Annotated[str, Bounds(min_length=1, max_length=200)]
Gbps = Annotated[float, Bounds(gt=0, le=1e6)]
Seconds = Annotated[float, Bounds(ge=0)]
Sha256 = Annotated[str, Bounds(pattern=r"^[0-9a-f]{64}$")]
Json = Annotated[Any, _Plain()]
Status = Literal["optimal", "feasible", "infeasible"]
