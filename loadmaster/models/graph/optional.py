"""Values that a schedule may keep, and may as well not: those for which it can matter.

Every value that need not be kept may be. Left out are those that are no better kept than some other choice, by the cost
model (:mod:`.costs`), in which what is made number by number costs nothing beside its reads:

(D1)  what is made of one value number by number, or only repeats it: whoever reads it can read that value.
(D2)  what one kernel alone reads, in rows of its own space and in its own pass: to store it and to read it back costs
      no less than to read what it is made from. (Not where a product needs it kept.)
(D3)  what only one other value that may be kept is made from, of the same space and pass and with no more numbers: to
      keep that one saves as much.

(D2) and (D3) hold for time alone: a value that is kept can let go of larger ones before.
"""

from __future__ import annotations

from loadmaster.models.graph.inline import base, is_by_numbers, matrix_rows, required
from loadmaster.models.graph.operators import OPERATORS
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.value import GIVEN

_REPEATS = ("repeat_heads", "repeat_last", "pad")


def optional(program: Program, *, by_time_alone: bool) -> frozenset[int]:
    """Numbers of the values that may be kept.

    Args:
        by_time_alone: whether (D2) and (D3) count, too.
    """
    must = required(program)
    rows = _in_rows_of_products(program)
    found = {
        n
        for n, value in enumerate(program.values)
        if n not in must and value.op not in GIVEN and OPERATORS[value.op].sort != "view"
    }
    for n in sorted(found):
        if _is_by_number(program, n) or (n not in rows and program.values[n].op in _REPEATS):
            found.discard(n)
    if by_time_alone:
        for n in sorted(found):
            reader = _only_reader(program, n)
            alone = reader in must and n not in rows and _is_alone_for(program, n, reader)
            if alone or (reader in found and _is_as_good(program, n, reader)):
                found.discard(n)
    return frozenset(found)


def _is_by_number(program: Program, n: int) -> bool:
    """(D1)"""
    return is_by_numbers(program, n) and len(program.values[n].inputs) == 1


def _is_alone_for(program: Program, n: int, reader: int) -> bool:
    """(D2)"""
    return program.types[n].space == (program.values[reader].over or program.types[reader].space)


def _is_as_good(program: Program, n: int, reader: int) -> bool:
    """(D3)"""
    mine, other = program.types[n], program.types[reader]
    return mine.space == other.space and other.numbers <= mine.numbers


def _only_reader(program: Program, n: int) -> int:
    """The one value that is made from it, in the same pass; -1 where there is none, or another."""
    readers = _readers(program, n)
    if len(readers) != 1:
        return -1
    (reader,) = readers
    return reader if (n < program.forward_count) == (reader < program.forward_count) else -1


def _readers(program: Program, n: int) -> set[int]:
    """Values made from it, views looked through."""
    found: set[int] = set()
    for reader in program.readers[n]:
        if OPERATORS[program.values[reader].op].sort == "view":
            found |= _readers(program, reader)
        else:
            found.add(reader)
    return found


def _in_rows_of_products(program: Program) -> set[int]:
    """Where something else than maps stands between values and a product: one on the way must be kept (S3)."""
    found: set[int] = set()
    for n in range(len(program.values)):
        for i in matrix_rows(program, n):
            found |= _others_below(program, base(program, i))
    return found


def _others_below(program: Program, n: int) -> set[int]:
    """Of a value and those that it is made from number by number: all from it down to anything that is no map."""
    value = program.values[n]
    if value.op in GIVEN or OPERATORS[value.op].sort not in ("map", "row"):
        return set()
    if not is_by_numbers(program, n):
        return {n}
    below: set[int] = set()
    for i in value.inputs:
        below |= _others_below(program, base(program, i))
    return below | {n} if below else set()
