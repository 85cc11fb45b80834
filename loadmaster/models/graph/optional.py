"""Optional values of a schedule: those that it may keep or make inline, as far as the choice can matter.

Every value that need not be kept may be. Left out are those that are no better kept than some other choice, by the cost
model (:mod:`.costs`), in which a value made on the way costs nothing but its reads, except in the rows of products:

(D1)  a value that is made of one value number by number, or only repeats it: its readers can read that value.
(D2)  a value that one kernel alone reads, in rows of its own space in the order of memory and in its own pass: storing
      it and reading it back costs no less than reading what it is made from. (Not where that is a product.)
(D3)  a value from which only one other value that may be kept is made, of the same space and pass and with no more
      numbers: keeping that one saves as much. (Not where a traversal by sources or targets could make it, and has the
      other values that it is made from in its own rows.)

(D2) and (D3) hold for time alone: a value that is kept can free larger ones earlier.
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
    """Return whether (D1) leaves out a value: it is made of one value number by number."""
    return is_by_numbers(program, n) and len(program.values[n].inputs) == 1


def _is_alone_for(program: Program, n: int, reader: int) -> bool:
    """Return whether (D2) leaves out a value: its one reader takes it in the order of memory."""
    over, to = program.values[reader].over, program.types[reader].space
    if matrix_rows(program, reader) or (over is not None and not come_as_they_lie(over, to)):
        return False
    return program.types[n].space == (over or to)


def _is_as_good(needs: Inline, n: int, reader: int) -> bool:
    """Return whether (D3) leaves out a value: keeping its one reader saves as much."""
    program = needs.program
    mine, other = program.types[n], program.types[reader]
    if mine.space != other.space or other.numbers > mine.numbers:
        return False
    others = needs.of(i for i in program.values[reader].inputs if base(program, i) != n)
    groups = _grouped_by(needs, reader)
    return not any(is_coarser(seen, to) or is_coarser(to, seen) for _, seen in others.seen for to in groups)


def _grouped_by(needs: Inline, n: int) -> set[Space]:
    """Spaces by which the traversals that could make a value group their rows."""
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
    """Only value that is made from a value, if in the same pass; else -1."""
    readers = _readers(program, n)
    if len(readers) != 1:
        return -1
    (reader,) = readers
    return reader if (n < program.forward_count) == (reader < program.forward_count) else -1


def _readers(program: Program, n: int) -> set[int]:
    """Values made from a value, views looked through."""
    found: set[int] = set()
    for reader in program.readers[n]:
        if OPERATORS[program.values[reader].op].sort == "view":
            found |= _readers(program, reader)
        else:
            found.add(reader)
    return found


def _in_rows_of_products(program: Program) -> set[int]:
    """Values with something else than maps between them and a product: one on the way must be kept (S3)."""
    found: set[int] = set()
    for n in range(len(program.values)):
        for i in matrix_rows(program, n):
            found |= _others_below(program, base(program, i))
    return found


def _others_below(program: Program, n: int) -> set[int]:
    """Values from this one down, through maps, to operators on rows that are not maps, both ends included."""
    value = program.values[n]
    if value.op in GIVEN or OPERATORS[value.op].sort not in ("map", "row"):
        return set()
    if not is_by_numbers(program, n):
        return {n}
    below: set[int] = set()
    for i in value.inputs:
        below |= _others_below(program, base(program, i))
    return below | {n} if below else set()
