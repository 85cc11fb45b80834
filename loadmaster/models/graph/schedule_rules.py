"""Rules of schedules, (S1) to (S6) of :mod:`.schedule`, with each broken rule in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from loadmaster.errors import InputError
from loadmaster.models.graph.inline import (
    Inline,
    Need,
    base,
    is_by_numbers,
    matrix_rows,
    rows_class,
    shown_whole,
)
from loadmaster.models.graph.lowering import template_of
from loadmaster.models.graph.operators import GIVEN
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.schedule import EVERY_TILE, MOST_STORES, Kernel, Schedule, Template, Tiles, must_be_kept
from loadmaster.models.graph.spaces import is_coarser


def broken_rules(program: Program, schedule: Schedule) -> list[str]:
    """List the broken rules of a schedule in words; empty if it holds. Raises InputError if it names values that the
    program lacks, or more forward kernels than it has."""
    known = len(program.values)
    for at, kernel in enumerate(schedule.kernels):
        for n in kernel.stores:
            if n >= known:
                remedy = f"Values are numbered 0 to {known - 1}."
                raise InputError(f"schedule.kernels[{at}].stores", n, "is no value of the program", remedy)
    if schedule.forward_count > len(schedule.kernels):
        remedy = f"There are {len(schedule.kernels)} kernels."
        raise InputError("schedule.forward_count", schedule.forward_count, "is more than there are", remedy)
    kept = frozenset(schedule.kept)
    needs = Inline(program, kept)
    return [
        *_kept(program, schedule, kept),
        *_order(program, schedule, needs),
        *_inline(program, kept, needs),
        *_stores(program, schedule, needs),
        *tiles_left_out("(S6)", schedule, lambda _: EVERY_TILE, "kernels have"),
    ]


def expect_schedule(program: Program, schedule: Schedule) -> None:
    """Refuse a schedule that does not hold."""
    found = broken_rules(program, schedule)
    if found:
        raise InputError("schedule", found[0], "breaks a rule of schedules", "Plan it again, or take greedy_schedule.")


def tiles_left_out(rule: str, schedule: Schedule, of: Callable[[Template], Tiles], who: str) -> Iterator[str]:
    """Iterate over violations by kernels whose tile is not among those ``of`` their template."""
    for at, kernel in enumerate(schedule.kernels):
        tile, tiles = kernel.tile, of(kernel.template)
        if tile not in tiles:
            cut = f"{tile.rows} rows, {tile.columns} columns and {tile.warps} warps"
            yield f"{rule} kernel {at} is a {kernel.template} of {cut}; {who} {tiles.words}: take some of these"


def _kept(program: Program, schedule: Schedule, kept: frozenset[int]) -> Iterator[str]:
    """Check (S1), and the part of (S3) by which values that cannot be inline are kept."""
    stored = [n for kernel in schedule.kernels for n in kernel.stores]
    for n in sorted(set(stored)):
        if stored.count(n) > 1:
            yield f"(S1) {program.values[n].name} is stored by {stored.count(n)} kernels"
        if base(program, n) != n or program.values[n].op in GIVEN:
            yield f"(S1) {program.values[n].name} is given or a view: nothing is to be stored"
    for n in range(len(program.values)):
        if must_be_kept(program, n) and n not in kept:
            yield f"(S3) {program.values[n].name} is a {program.values[n].op}, and not kept"
    for who, n in shown_whole(program):
        if n not in kept and program.values[n].op not in GIVEN:
            rule = "(S1)" if who == "the result" else "(S3)"
            yield f"{rule} {program.values[n].name} is not kept, for {who}"


def _order(program: Program, schedule: Schedule, needs: Inline) -> Iterator[str]:
    """Check (S2): values are stored before they are read; of the same kernel's values, own rows alone are read."""
    there = {n for n, value in enumerate(program.values) if value.op in GIVEN}
    for at, kernel in enumerate(schedule.kernels):
        if at < schedule.forward_count and any(n >= program.forward_count for n in kernel.stores):
            yield f"(S2) kernel {at} of the forward pass stores a value of the backward pass"
        for n in kernel.stores:
            need = needs.to_make(n)
            own = need.reads & {*kernel.stores}
            for r in sorted(need.reads - there - own):
                yield f"(S2) kernel {at} reads {program.values[r].name} before it is stored"
            for r in sorted(_unreadable(program, kernel, n, need, own)):
                yield f"(S2) kernel {at} reads {program.values[r].name}, which it stores, at other rows than its own"
        there.update(kernel.stores)


def _unreadable(program: Program, kernel: Kernel, n: int, need: Need, own: frozenset[int]) -> set[int]:
    """Values that a kernel itself stores, and that another one of its values cannot be made from there."""
    is_product = kernel.template in ("outer", "fold") or (kernel.template == "gemm" and matrix_rows(program, n))
    return set(own if is_product else own & need.elsewhere)


def _inline(program: Program, kept: frozenset[int], needs: Inline) -> Iterator[str]:
    """Check (S3): in rows that enter products of matrices, numbers are made from numbers at their place."""
    for n in sorted(kept):
        for i in matrix_rows(program, n):
            for v in sorted(needs.of([i]).inline):
                if not is_by_numbers(program, v):
                    name = program.values[v].name
                    yield f"(S3) {name} is inline in the rows of {program.values[n].name}, and no map"


def _stores(program: Program, schedule: Schedule, needs: Inline) -> Iterator[str]:
    """Check (S4) and (S5): what kernels read, and what they store."""
    for at, kernel in enumerate(schedule.kernels):
        products = [n for n in kernel.stores if template_of(program, n) == "gemm"]
        if kernel.template in ("outer", "fold", "gemm"):
            main = products if kernel.template == "gemm" else list(kernel.stores)
            if len(main) != 1:
                yield f"(S5) kernel {at} is a {kernel.template} of {len(main)} products, not one"
        if len(kernel.stores) > MOST_STORES[kernel.template]:
            most = MOST_STORES[kernel.template]
            yield f"(S5) kernel {at} stores {len(kernel.stores)} values; a {kernel.template} has room for {most}"
        for n in kernel.stores:
            yield from _stored(program, kernel, at, n)
            for r in sorted(needs.to_make(n).reads - needs.to_make(n).elsewhere):
                over = kernel.over or kernel.rows
                space = program.types[r].space
                if not is_coarser(space, over) and rows_class(space) != rows_class(over):
                    yield f"(S4) kernel {at} over {over} reads {program.values[r].name}, which is of {space}"
        if kernel.template == "gemm" and len(products) == 1:
            for n in kernel.stores:
                reads = needs.to_make(n).reads
                if n != products[0] and not reads.intersection(kernel.stores):
                    yield f"(S5) {program.values[n].name} is not made from the rows of kernel {at}, a gemm"


def _stored(program: Program, kernel: Kernel, at: int, n: int) -> Iterator[str]:
    value, space = program.values[n], program.types[n].space
    expected = template_of(program, n)
    fits = expected == kernel.template or (kernel.template == "gemm" and expected == "map")
    if not fits:
        yield f"(S5) kernel {at} is a {kernel.template}, and {value.name} needs a {expected}"
    same = (
        space == kernel.rows
        if kernel.template in ("traverse", "outer")
        else rows_class(space) == rows_class(kernel.rows)
    )
    if not same or value.over != kernel.over:
        yield f"(S5) kernel {at} is of {kernel.rows}, {value.name} of {space}"
