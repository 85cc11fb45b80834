"""Values that a schedule may keep, and may as well not: those for which it can matter.

Every value that need not be kept may be. Left out are those that are no better kept than some other choice, by the cost
model (:mod:`.costs`), in which what is made on the way costs nothing beside its reads, except in the rows of products:

(D1)  what is made of one value number by number, or only repeats it: whoever reads it can read that value.
(D2)  what one kernel alone reads, in rows of its own space as they lie and in its own pass: to store it and to read it
      back costs no less than to read what it is made from. (Not where that is a product.)
(D3)  what only one other value that may be kept is made from, of the same space and pass and with no more numbers: to
      keep that one saves as much. (Not where a traversal by sources or targets could make it, and has of its own rows
      what else it is made from.)

(D2) and (D3) hold for time alone: a value that is kept can let go of larger ones before.
"""

from __future__ import annotations

from loadmaster.models.graph.inline import Inline, base, is_by_numbers, matrix_rows, required
from loadmaster.models.graph.operators import OPERATORS
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.reading import come_as_they_lie
from loadmaster.models.graph.spaces import Space, is_coarser
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
        needs = Inline(program, must)
        for n in sorted(found):
            reader = _only_reader(program, n)
            alone = reader in must and _is_alone_for(program, n, reader)
            if alone or (reader in found and _is_as_good(needs, n, reader)):
                found.discard(n)
    return frozenset(found)


def _is_by_number(program: Program, n: int) -> bool:
    """(D1)"""
    return is_by_numbers(program, n) and len(program.values[n].inputs) == 1


def _is_alone_for(program: Program, n: int, reader: int) -> bool:
    """(D2)"""
    over, to = program.values[reader].over, program.types[reader].space
    if matrix_rows(program, reader) or (over is not None and not come_as_they_lie(over, to)):
        return False
    return program.types[n].space == (over or to)


def _is_as_good(needs: Inline, n: int, reader: int) -> bool:
    """(D3)"""
    program = needs.program
    mine, other = program.types[n], program.types[reader]
    if mine.space != other.space or other.numbers > mine.numbers:
        return False
    others = needs.of(i for i in program.values[reader].inputs if base(program, i) != n)
    groups = _grouped_by(needs, reader)
    return not any(is_coarser(seen, to) or is_coarser(to, seen) for _, seen in others.seen for to in groups)


def _grouped_by(needs: Inline, n: int) -> set[Space]:
    """By what the traversals take their rows that could make a value."""
    program, found, ahead = needs.program, set[Space](), [n]
    while ahead:
        for reader in program.readers[ahead.pop()]:
            value, to = program.values[reader], program.types[reader].space
            if value.over is not None and not come_as_they_lie(value.over, to):
                found.add(to)
            if reader not in needs.kept:
                ahead.append(reader)
    return found


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
