"""Greedy schedule of any program, by rule: the executor runs it where nothing is planned."""

from __future__ import annotations

from loadmaster.models.graph.inline import Inline, base, is_by_numbers, matrix_rows, required
from loadmaster.models.graph.lowering import lowered
from loadmaster.models.graph.operators import OPERATORS
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.schedule import Schedule
from loadmaster.models.graph.spaces import is_coarser
from loadmaster.models.graph.value import GIVEN


def greedy_schedule(program: Program) -> Schedule:
    """Schedule a program in as few kernels as the greedy lowering makes; row sums of products are kept where shared.

    Example: for ``rgat``, the scores of source and target, which edges share, are kept, those of edges are not.
    """
    return lowered(program, greedy_kept(program))


def greedy_kept(program: Program) -> frozenset[int]:
    """Values that :func:`greedy_schedule` keeps."""
    kept = least_kept(program)
    for n, value in enumerate(program.values):
        if n in kept or value.op not in ("dot", "row_sum"):
            continue
        if _is_shared(program, n) or len(_kernels_that_make(program, n, kept)) > 1:
            kept |= {n}
    return kept


def least_kept(program: Program) -> frozenset[int]:
    """Values that every schedule keeps, and those that products of matrices need in addition: a least valid choice."""
    return legalized(program, required(program))


def legalized(program: Program, kept: frozenset[int]) -> frozenset[int]:
    """Extend kept values by those that products of matrices need: in their rows, only maps are inline (S3)."""
    for n in range(len(program.values)):
        for i in matrix_rows(program, n):
            whole = base(program, i)
            inline = sorted(Inline(program, kept).of([i]).inline)
            others = [v for v in inline if not is_by_numbers(program, v)]
            if not others:
                continue
            # Numbers for each row are kept themselves; for anything wider, the rows as they enter the product.
            numbers = program.types[whole].numbers
            narrow = all(2 * program.types[v].numbers <= numbers for v in others)
            kept |= set(others) if narrow else {whole}
    return kept


def _is_shared(program: Program, n: int) -> bool:
    """Return whether several rows of another space read one row of a value."""
    seen, ahead = set[int](), [n]
    while ahead:
        for reader in program.readers[ahead.pop()]:
            value, space = program.values[reader], program.types[reader].space
            if value.over not in (None, program.types[n].space) and is_coarser(program.types[n].space, value.over):
                return True
            if value.over is None and space != program.types[n].space and is_coarser(program.types[n].space, space):
                return True
            if OPERATORS[value.op].sort == "view" and reader not in seen:
                seen.add(reader)
                ahead.append(reader)
    return False


def _kernels_that_make(program: Program, n: int, kept: frozenset[int]) -> set[tuple[object, ...]]:
    """Keys of the kernels that would make a value inline, as far as kernels can be told apart before they exist."""
    found: set[tuple[object, ...]] = set()
    needs = Inline(program, kept)
    for k in kept:
        value = program.values[k]
        if value.op not in GIVEN and n in needs.to_make(k).inline:
            is_aggregate = value.op == "aggregate"
            passed = k < program.forward_count
            found.add((value.over, value.space, passed) if is_aggregate else (k,))
    return found
