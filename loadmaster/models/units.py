"""Units that people read and write: parsed strictly, written short.

Documents hold bytes as integers and times as microseconds. People may write ``5GiB``, ``800MB`` and ``50%`` wherever a
limit is given, on the command line, in Python and over HTTP; the kind says what a share is taken of
(:class:`loadmaster.models.kind.Limit`).
"""

from __future__ import annotations

import re

from loadmaster.errors import InputError

_FACTORS = {
    "": 1,
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_SIZE = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[A-Za-z]*)", re.ASCII)
_SHARE = re.compile(r"(?P<number>\d+(\.\d+)?)\s*%", re.ASCII)
_FRACTION = re.compile(r"(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
_LONGEST_COUNT = 18
# A step takes more than was planned, but not ten times as much: that is a size, or a slip of the pen.
_LARGEST_SHARE = 10.0
_REMEDY = "Give bytes, or a number with B, kB, MB, GB, TB, KiB, MiB, GiB or TiB, as in 5GiB."


def parse_bytes(text: str, field: str) -> int:
    """Parse a size: ``5GiB`` as bytes. A bare number is bytes; the letter case of a unit counts. Raises InputError,
    naming ``field``, if there is no such unit, or the size is below one byte or beyond 2^63."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InputError(field, text, "is not a size", _REMEDY)
    unit = match["unit"]
    if unit not in _FACTORS:
        near = next((u for u in _FACTORS if u.lower() == unit.lower()), None)
        remedy = f"Write {match['number']}{near}." if near else _REMEDY
        raise InputError(field, text, f"{unit} is not a unit of size", remedy)
    size = float(match["number"]) * _FACTORS[unit] if match[2] else int(match["number"]) * _FACTORS[unit]
    if size < 1:
        raise InputError(field, text, "is less than one byte", "Give a positive size.")
    if size >= 2**63:
        raise InputError(field, text, "is more than any memory holds", "Give a smaller size.")
    return int(size)


def bytes_of(given: int | str, field: str) -> int:
    """Return a size in bytes, given as a number or as people write it. Raises InputError, naming ``field``, for a
    share, a negative number, or what is no size."""
    if isinstance(given, str):
        if "%" in given:
            raise InputError(field, given, "is a share, and there is nothing here to take it of", _REMEDY)
        return parse_bytes(given, field)
    if isinstance(given, bool) or not isinstance(given, int):
        raise InputError(field, given, "is no whole number of bytes", _REMEDY)
    if given < 0:
        raise InputError(field, given, "is negative", _REMEDY)
    return given


def parse_share(text: str, field: str, of: str) -> float:
    """Parse a percentage of a whole, ``of`` in words: ``50%`` as 0.5. Raises InputError, naming ``field``, if it is not
    a percentage, not above 0, or above 1,000 %."""
    share = _percentage(text, field, "50%")
    if not 0 < share <= _LARGEST_SHARE:
        remedy = f"Give more than 0%, and at most {_LARGEST_SHARE:.0%}, as in 50%."
        raise InputError(field, text, f"is not a usable share of {of}", remedy)
    return share


def parse_fraction(text: str, field: str) -> float:
    """Parse a fraction from 0 to 1: ``1%`` or ``0.01``; raise InputError, naming ``field``, if it is none."""
    if "%" in text:
        fraction = _percentage(text, field, "1%")
    elif _FRACTION.fullmatch(text.strip()):
        fraction = float(text)
    else:
        raise InputError(field, text, "is neither a percentage nor a fraction", "Write it as 1%, or as 0.01.")
    if fraction > 1:
        raise InputError(field, text, "is more than 100%", "Give a percentage, as in 1%, or a fraction, as in 0.01.")
    return fraction


def _percentage(text: str, field: str, example: str) -> float:
    match = _SHARE.fullmatch(text.strip())
    if match is None:
        raise InputError(field, text, "is not a percentage", f"Write it as {example}.")
    return float(match["number"]) / 100


def parse_count(text: str, field: str, unit: str) -> int:
    """Parse a whole number of a unit without multiples; raise InputError, naming ``field``, for anything else."""
    if not (text.strip().isascii() and text.strip().isdecimal()) or len(text) > _LONGEST_COUNT:
        raise InputError(field, text, f"is no number of {unit}", "Give a whole number, or a percentage, as in 50%.")
    return int(text)


def show_limit(value: int, unit: str) -> str:
    """Write a limit in its unit: bytes in binary units, others as they are."""
    return show_bytes(value) if unit == "bytes" else f"{value} {unit}"


def limit_scale(largest: float, unit: str) -> tuple[float, str]:
    """Scale and unit of an axis of limits, in any unit; see :func:`byte_scale`."""
    return byte_scale(largest) if unit == "bytes" else (1.0, unit)


def show_bytes(size_bytes: float) -> str:
    """Write a size in binary units with three significant digits: ``4.98 GiB``, ``312 MiB``, ``17 B``."""
    sign = "-" if size_bytes < 0 else ""
    size = abs(float(size_bytes))
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{sign}{_digits(size, 3)} {unit}" if unit != "B" else f"{sign}{size:.0f} B"
        size /= 1024
    return f"{sign}{_digits(size, 3)} TiB"


def show_mib(size_bytes: float) -> str:
    """Write a size in MiB with one decimal, for sizes that are compared: ``1,234.5 MiB``."""
    return f"{size_bytes / (1 << 20):,.1f} MiB"


def show_at_least(size_bytes: int) -> str:
    """Write a size as :func:`show_bytes`, rounded up: a least budget that is given back as it is shown suffices."""
    unit_bytes = 1
    while size_bytes >= 1024 * unit_bytes and unit_bytes < 1024**4:
        unit_bytes *= 1024
    # A step of the last digit shown, rounded up in whole bytes.
    decimals = 0 if unit_bytes == 1 else max(0, 3 - len(str(size_bytes // unit_bytes)))
    steps = -(-size_bytes * 10**decimals // unit_bytes)
    return show_bytes(-(-steps * unit_bytes // 10**decimals))


def byte_scale(largest_bytes: float) -> tuple[float, str]:
    """Choose the unit in which an axis up to that size reads well: (bytes per unit, unit)."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if largest_bytes >= 1024.0**power:
            return 1024.0**power, unit
    return 1.0, "B"


def show_cost(value: float, unit: str) -> str:
    """Write a cost in its unit: microseconds, microjoules and bytes in a fitting multiple, others as they are."""
    if unit == "bytes":
        return show_bytes(round(value))
    base = {"us": "s", "uj": "J"}.get(unit)
    if base is None:
        return f"{value:g} {unit}"
    # Milliseconds up to ten seconds, so that the steps of one sweep compare at a glance.
    for factor, prefix, least in ((1e6, "", 1e7), (1e3, "m", 1e3)):
        if abs(value) >= least:
            return f"{_digits(value / factor, 4)} {prefix}{base}"
    digits = _digits(value, 4)
    return f"{digits} u{base}" if float(digits) else f"0 {base}"


def show_share(value: float | None) -> str:
    """Write a ratio as a percentage, None as ``unknown``."""
    return "unknown" if value is None else f"{100 * value:.2f} %"


def _digits(value: float, significant: int) -> str:
    """Write a number with that many significant digits, more before the point if it has them, never an exponent."""
    whole = len(str(int(abs(value))))
    return f"{value:.{max(0, significant - whole)}f}"
