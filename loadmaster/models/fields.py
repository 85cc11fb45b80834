"""What the fields of documents may hold: marks for the annotations of problems and plans.

The dataclasses of every kind are what is read and written (:mod:`loadmaster.models.documents`); a mark says what a
value's type does not. pydantic asks each mark for its part of the schema when the first document is read: to build a
typed problem, or to write one, takes no pydantic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, get_args

# One exbibyte: a size above it is a mistake in units, not a tensor.
LARGEST_BYTES = 1 << 60
# What every reader of JSON can hold.
LARGEST_INTEGER = (1 << 63) - 1

# A text whose field says no length of its own: titles, places in the source, reasons.
LONGEST_TEXT = 4_000

# How pydantic reads the dataclasses that say so, and those within them: unknown fields are refused, text is no number.
READING: Mapping[str, Any] = {
    "extra": "forbid",
    "strict": True,
    "allow_inf_nan": False,
    "str_max_length": LONGEST_TEXT,
}


@dataclass(frozen=True)
class Bounds:
    """Least and greatest of a number, lengths of a text or a list, the pattern of a text."""

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
    """None where the document leaves the field out, though the class asks for it."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return {"type": "default", "schema": handler(source), "default": None}


@dataclass(frozen=True)
class Ascending:
    """A set, written as a list: what is read is put in order, each once."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(lambda read: tuple(sorted(set(read))), handler(source))


@dataclass(frozen=True)
class AsText:
    """A whole number that is a key: written as text, because JSON has no other keys; in one way only."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        written = core_schema.str_schema(pattern=r"^(0|[1-9][0-9]{0,3})$", strict=True)
        return core_schema.chain_schema([written, core_schema.no_info_plain_validator_function(int)])


@dataclass(frozen=True, eq=False)
class Entries:
    """A mapping of plain JSON values in which these entries, where they are there, have these types."""

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
    """One of several dataclasses, told by one of their fields, which has a default of its own in each."""

    field: str

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        schemas = {getattr(type_, self.field): handler.generate_schema(type_) for type_ in get_args(source)}
        return core_schema.tagged_union_schema(schemas, discriminator=self.field)


@dataclass(frozen=True)
class _Plain:
    """A value that every reader of JSON understands."""

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
