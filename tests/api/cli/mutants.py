"""Files that somebody broke: a document with one place changed, or a few of its bytes."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

Place = tuple[Any, Any]
"""A list or an object, and an index or a key of it."""

_DEEP = 5_000
# What stands where it should not: other types, numbers at the ends of what types hold, text that is no text.
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 1 << 31, (1 << 53) + 1, 1 << 62, (1 << 63) - 1, 1 << 63,
    -(1 << 63), 10**30, 10**400, 0.5, -0.5, -0.0, 1e-320, 1e-9, 1e17, 1e300, -1e300, 1.7976931348623157e308,
    "", "0", "a", "é", "\0", "\n\x1b[2J", "<script>", "../x", "x" * 10_000, [], {}, [[]], [0], [None], ["a"], {"a": 1},
    [1e300] * 3, list(range(300)), {"name": []},
)  # fmt: skip
# Numbers at the ends of what fields take.
_INTEGERS = (0, 1, 2, 10**6, 1 << 20, 32 * 10**15, 1 << 60, (1 << 63) - 1)
_NUMBERS = (0.0, 5e-324, 1e-9, 1e-3, 1e6, 1e9, 3.2e13, 1e20, 1e21, 1.7e308)
# As JSON text, because no Python object is written so.
_TEXTS = (
    "NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 5_000, "-" + "9" * 4_000, "1" + "0" * 4_299, '"\\ud800"',
    '"\\udfff x"', "[" * _DEEP + "]" * _DEEP, '{"a":' * _DEEP + "1" + "}" * _DEEP, "[" * 150 + "]" * 150,
    '{"a":' * 190 + "1" + "}" * 190, "[" * _DEEP, "01", "+1", ".5", "'a'", "tru", "", ",", '"\x01"', "/* */ 1",
)  # fmt: skip
_MARK = "@the place@"


def mutant(document: dict[str, Any], dice: random.Random) -> bytes:
    """The document as a file, with something wrong in it (or, now and then, nothing)."""
    changed = copy.deepcopy(document)
    for _ in range(dice.choice((1, 1, 1, 1, 2, 3))):
        places = list(_places(changed))
        if places:
            _change(dice.choice(places), places, dice)
    content = json.dumps(changed, ensure_ascii=dice.random() < 0.5).encode("utf-8", "surrogatepass")
    roll = dice.random()
    if roll < 0.1:
        places = list(_places(changed))
        if places:
            inside, key = dice.choice(places)
            inside[key] = _MARK
        return json.dumps(changed).replace(json.dumps(_MARK), dice.choice(_TEXTS)).encode()
    if roll < 0.2:
        return _bytes_changed(content, dice)
    return content


def _places(value: Any) -> Iterator[Place]:
    """Every place of a document, from the outside in."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


def _change(place: Place, places: list[Place], dice: random.Random) -> None:
    inside, key = place
    match dice.choice((0, 1, 2, 3, 3, 4, 4, 5, 5, 6, 7)):
        case 0:
            del inside[key]
        case 1 if isinstance(inside, dict):
            inside[dice.choice(("colour", "", "é" * 50, "kind", "__class__", f"{key}s"))] = inside.pop(key)
        case 1:
            inside.insert(key, copy.deepcopy(inside[key]))
        case 2:
            other, there = dice.choice(places)
            if there in other if isinstance(other, dict) else there < len(other):
                inside[key] = copy.deepcopy(other[there])
        case 3 | 4 | 5 if isinstance(inside[key], int | float) and not isinstance(inside[key], bool):
            within = max(-1 << 60, min(inside[key], 1 << 60))
            near = inside[key] + 1, inside[key] - 1, -inside[key], inside[key] * 1000, float(within)
            inside[key] = dice.choice((*near, *(_INTEGERS if isinstance(inside[key], int) else _NUMBERS)))
        case 6:
            inside[key] = [inside[key]]
        case _:
            inside[key] = copy.deepcopy(dice.choice(_VALUES))


def _bytes_changed(content: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(len(content))
    match dice.randrange(5):
        case 0:
            return content[:at]
        case 1:
            return content[:at] + bytes([dice.randrange(256)]) + content[at + 1 :]
        case 2:
            return (
                content[:at]
                + dice.choice((b"\xff", b"\0", b"}", b"]", b'"', b"\xed\xa0\x80", b"\\ud800"))
                + content[at:]
            )
        case 3:
            return content[:at] + content[at:] * 2
        case _:
            return dice.choice(
                (
                    b"",
                    b"\xef\xbb\xbf",
                    b"\xff\xfe",
                    b"null",
                    b"[]",
                    b"{}",
                    b"\x80" * 10,
                    content.decode().encode("utf-16"),
                )
            )
