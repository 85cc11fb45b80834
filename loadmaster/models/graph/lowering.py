"""Lowering of kept values to kernels: as few as the greedy lowering of [Wu24] section 3.3.2 makes of them.

Kernels are taken one after the other. A kernel is *ready* when all that it reads is given or stored.

1.  Products of weights, and values made row by row; all of one space that are ready go into one kernel.
2.  A product through a weight, with all else that is made from its rows, once the other values that this reads are
    stored.
3.  Gradients of weights.
4.  Aggregates: all from one space to one space that are ready, and those that become ready with them, in one traversal.
5.  Where none of these is ready, a product through a weight, without values that cannot be made with it yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from loadmaster.models.graph.inline import Inline, base, is_by_numbers, matrix_rows, required, rows_class
from loadmaster.models.graph.operators import GIVEN, OPERATORS
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.schedule import MOST_STORES, Kernel, Schedule, Template, Tile
from loadmaster.models.graph.spaces import is_coarser

_TEMPLATES: dict[str, Template] = {"aggregate": "traverse", "outer": "outer", "weight": "fold"}


def template_of(program: Program, n: int) -> Template:
    """Template of the kernel that stores a value alone."""
    value = program.values[n]
    return "gemm" if value.op == "linear" else _TEMPLATES.get(OPERATORS[value.op].sort, "map")


def lowered(program: Program, kept: Set[int], fuse: bool = True) -> Schedule:
    """Make a schedule that keeps these values and no others; (S1) and (S3) must hold for them."""
    lowering = _Lowering(program, kept, fuse)
    forward = [*lowering.kernels(sorted(n for n in kept if n < program.forward_count))]
    backward = [*lowering.kernels(sorted(n for n in kept if n >= program.forward_count))]
    return Schedule((*forward, *backward), len(forward))


class _Lowering:
    def __init__(self, program: Program, kept: Set[int], fuse: bool) -> None:
        self.program, self.fuse = program, fuse
        self.needs = {n: Inline(program, kept).to_make(n) for n in kept}
        self.there = {n for n, value in enumerate(program.values) if value.op in GIVEN}

    def kernels(self, pending: list[int]) -> Iterator[Kernel]:
        while pending:
            stores = self._next(pending)
            yield kernel_of(self.program, stores)
            self.there.update(stores)
            pending = [n for n in pending if n not in stores]

    def _next(self, pending: list[int]) -> list[int]:
        ready = [n for n in pending if self._is_ready(n)]
        by: dict[Template, list[int]] = {}
        for n in ready:
            by.setdefault(template_of(self.program, n), []).append(n)
        if "fold" in by:
            return by["fold"][:1]
        if "map" in by:
            return self._grown(by["map"][0], pending) if self.fuse else by["map"][:1]
        epilogues = {n: self._epilogue(n, pending) for n in by.get("gemm", ())}
        whole = [n for n, (stored, late) in epilogues.items() if not late]
        if whole:
            return epilogues[whole[0]][0]
        if "outer" in by:
            return by["outer"][:1]
        if "traverse" in by:
            groups = [self._grown(n, pending) if self.fuse else [n] for n in by["traverse"]]
            return max(groups, key=lambda group: (self._is_all_of_its_sort(group, pending), len(group)))
        return epilogues[by["gemm"][0]][0]

    def _is_ready(self, n: int, also: Set[int] = frozenset()) -> bool:
        """Return whether all that a value is made from is stored, or in ``also``, which it may read at its own rows."""
        need = self.needs[n]
        return need.reads <= self.there | also and not need.elsewhere & also

    def _grown(self, first: int, pending: Sequence[int]) -> list[int]:
        found = [first]
        for _ in pending:
            more = [
                n
                for n in pending
                if n not in found and _is_alike(self.program, n, first) and self._is_ready(n, {*found})
            ]
            if not more:
                break
            found += more
        # Take the first ones: values that they read of each other come before them.
        return sorted(found)[: MOST_STORES[template_of(self.program, first)]]

    def _is_all_of_its_sort(self, group: list[int], pending: Sequence[int]) -> bool:
        return all(n in group for n in pending if _is_alike(self.program, n, group[0]))

    def _epilogue(self, linear: int, pending: Sequence[int]) -> tuple[list[int], bool]:
        """Collect a product and the values that can be made from its rows at once; tell whether more could be later."""
        found, late = [linear], False
        if not self.fuse:
            return found, late
        space = rows_class(self.program.types[linear].space)
        for n in pending:
            at_rows = template_of(self.program, n) == "map" and rows_class(self.program.types[n].space) == space
            if (
                len(found) < MOST_STORES["gemm"]
                and at_rows
                and self.needs[n].reads.intersection(found)
                and not self.needs[n].elsewhere.intersection(found)
            ):
                if self._is_ready(n, {*found}):
                    found.append(n)
                else:
                    late = True
        return found, late


def _is_alike(program: Program, a: int, b: int) -> bool:
    """Return whether the kernels of two values have one template and run over the same rows."""
    template, spaces = template_of(program, a), (program.types[a].space, program.types[b].space)
    if template != template_of(program, b):
        return False
    if template == "traverse":
        return spaces[0] == spaces[1] and program.values[a].over == program.values[b].over
    return rows_class(spaces[0]) == rows_class(spaces[1])


def kernel_of(program: Program, stores: Sequence[int]) -> Kernel:
    """Make the kernel that stores these values; its template is that of the first product, or of the first value."""
    templates = {template_of(program, n): n for n in reversed(stores)}
    template: Template = "gemm" if "gemm" in templates else template_of(program, stores[0])
    lead = templates[template]
    return Kernel(template, program.types[lead].space, tuple(stores), program.values[lead].over, _tile(program, lead))


def _tile(program: Program, n: int) -> Tile:
    """Tile by rule, the fastest in trials on an H100, whatever the graph. Many rows of a product share the reads of a
    weight. More warps help with contiguous rows; gathered rows come one by one, however many warps wait."""
    value = program.values[n]
    if value.op != "linear":
        return Tile()
    rows = program.types[base(program, value.inputs[0])].space
    is_gathered = rows_class(rows) != rows_class(program.types[n].space)
    return Tile(rows=128, warps=4 if is_gathered else 8)


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
