"""Parser of JSON text from outside, with errors that name the place that cannot be read. Wrong text may not be JSON at
all, or JSON that cannot be data: numbers that no type holds, half of a surrogate pair, objects nested too deeply.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

from loadmaster.errors import InputError
from loadmaster.models.fields import LARGEST_INTEGER

# Numbers that may be too large for 64 bits, in text that reads well: where there is one, all numbers are checked.
_LARGE = re.compile(r"(?<=[\[,:\s-])\d(?:\d{18}|[\d.]*[eE]\+?\d{3})")
_LONGEST_INTEGER = len(str(LARGEST_INTEGER))


def parse_json(content: bytes, refused: Callable[[object, str], InputError]) -> dict[str, Any]:
    """Parse the text of a JSON object. ``refused`` makes the error for text that is no JSON object, given what was
    found and what is wrong with it; for an object that holds what cannot be data, an InputError names the field."""
    from pydantic_core import from_json

    try:
        # Editors on Windows put a mark in front, or write UTF-16.
        text = content.decode(json.detect_encoding(content)).removeprefix("\ufeff")
        document = from_json(text, allow_inf_nan=False)
    except UnicodeDecodeError as error:
        found = content[error.start : error.start + 8]
        raise refused(found, f"is not UTF-8 at byte {error.start}") from None
    except ValueError as error:
        _expect_data(text, refused)
        if "recursion" in str(error):
            raise refused("...", "is nested too deeply") from None
        raise refused(text[:20], f"is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise refused(document, "is no JSON object")
    if _LARGE.search(text):
        _expect_data(text, refused)
    return document


def dump_json(document: object) -> str:
    """Write the JSON text of Python objects; raise InputError for what JSON cannot express, or what holds itself."""
    try:
        return json.dumps(document)
    except RecursionError:
        raise InputError(
            "document", "...", "is nested too deeply", "Give a document as Loadmaster writes it."
        ) from None
    except (TypeError, ValueError) as error:
        remedy = "Give objects, lists, text, numbers, true, false and null only."
        raise InputError("document", "...", f"cannot be written as JSON: {error}", remedy) from None


class _NoData(str):
    """Text of a number that no type holds."""


def _expect_data(text: str, refused: Callable[[object, str], InputError]) -> None:
    """Refuse JSON that cannot be data, naming the field; text that is not JSON passes."""
    try:
        document = json.loads(text, parse_constant=_NoData, parse_int=_whole_number, parse_float=_fraction)
    except RecursionError:
        raise refused("...", "is nested too deeply") from None
    except ValueError:
        return
    left: list[tuple[str, Any]] = [("", document)]
    while left:
        path, value = left.pop()
        if isinstance(value, dict):
            for key in value:
                _expect_text(path or "document", key)
            left += [(f"{path}.{key}" if path else key, part) for key, part in reversed(value.items())]
        elif isinstance(value, list):
            left += [(f"{path}[{n}]", part) for n, part in reversed([*enumerate(value)])]
        elif isinstance(value, _NoData):
            remedy = "Give a finite number, a whole one below 2**63."
            raise InputError(path, str(value), "is a number that no field holds", remedy)
        elif isinstance(value, str):
            _expect_text(path, value)


def _whole_number(text: str) -> int | _NoData:
    if len(text.removeprefix("-")) > _LONGEST_INTEGER or abs(int(text)) > LARGEST_INTEGER:
        return _NoData(text)
    return int(text)


def _fraction(text: str) -> float | _NoData:
    value = float(text)
    return value if math.isfinite(value) else _NoData(text)


def _expect_text(path: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(path, text, "is half of a surrogate pair, no text", "Give proper Unicode.") from None
