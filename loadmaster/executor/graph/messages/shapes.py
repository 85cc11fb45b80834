"""Features of any shape as kernels take them: two dimensions, along which an operand is whole or repeated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.graph.kernels.spmm_messages import Layout

Shape = tuple[int, ...]
# By whether an operand is whole, 1, or repeated, 0, along the outer and the inner dimension.
LAYOUTS: dict[tuple[int, int], Layout] = {(1, 1): "full", (1, 0): "outer", (0, 1): "inner", (0, 0): "one"}


class Joined(NamedTuple):
    """Shapes and layouts by which two operands' rows are joined.

    Attributes:
        shape: of a row of the result, by broadcasting; for ``dot`` with 1 in place of the last dimension.
        outer, inner: the two dimensions.
        layouts: of each operand.
        expanded: the shape that an operand's rows are to be written out to first; None: as they are.
    """

    shape: Shape
    outer: int
    inner: int
    layouts: tuple[Layout, Layout]
    expanded: tuple[Shape | None, Shape | None]


def join_shapes(left: Shape, right: Shape, dot: bool, expand_first: int) -> Joined:
    """Choose how rows of these shapes are joined, as DGL joins them: broadcast from the last dimension on.

    Args:
        expand_first: the operand, 0 or 1, to write out where two dimensions do not say how both are repeated.

    Raises:
        InputError: they do not broadcast; for ``dot``, there is no last dimension, or not the same one.
    """
    if dot and (not left or not right or left[-1] != right[-1]):
        raise InputError("message", (left, right), "have no last dimension in common", "Give rows of equal length.")
    rank = max(len(left), len(right))
    padded = [(1,) * (rank - len(shape)) + shape for shape in (left, right)]
    full: list[int] = []
    for a, b in zip(*padded, strict=True):
        if a != b and 1 not in (a, b):
            remedy = "Give rows that broadcast, from the last dimension on."
            raise InputError("message", (left, right), "are no shapes that can be joined", remedy)
        full.append(b if a == 1 else a)
    shape = (*full[:-1], 1) if dot else tuple(full)
    groups = _grouped(full, padded, dot)
    expanded: list[Shape | None] = [None, None]
    for operand in (expand_first, 1 - expand_first):
        if len(groups) > 2:
            padded[operand], expanded[operand] = tuple(full), tuple(full)
            groups = _grouped(full, padded, dot)
    groups = [(1, 1, 1)] * (2 - len(groups)) + groups
    (outer, *first), (inner, *second) = groups
    layouts = (LAYOUTS[first[0], second[0]], LAYOUTS[first[1], second[1]])
    return Joined(shape, outer, inner, layouts, (expanded[0], expanded[1]))


# Compilers look through the first; other calls find what they were told before.
remembered_join_shapes = lru_cache(maxsize=1024)(join_shapes)


def _grouped(full: Sequence[int], padded: Sequence[Shape], dot: bool) -> list[tuple[int, int, int]]:
    """Neighbouring dimensions along which both operands are whole, or repeated, together; 1 is left out."""
    groups: list[tuple[int, int, int]] = []
    dims = list(zip(full, *padded, strict=True))
    for i, (size, a, b) in enumerate(dims):
        last = dot and i == len(dims) - 1
        if size == 1 and not last:
            continue
        # Branches, not truths: a compiler that keeps sizes open settles them here.
        here = (size, 1 if a == size else 0, 1 if b == size else 0)
        if groups and not last and groups[-1][1:] == here[1:]:
            here = (groups.pop()[0] * size, *here[1:])
        groups.append(here)
    return groups


def rows_of(value: Tensor, expanded: Shape | None) -> Tensor:
    """Rows as kernels take them: [rows, numbers], contiguous."""
    rows = value.shape[0]
    if expanded is not None:
        padded = value.view(rows, *(1,) * (len(expanded) - value.dim() + 1), *value.shape[1:])
        value = padded.expand(rows, *expanded)
    if value.dim() != 2:
        value = value.reshape(rows, math.prod(value.shape[1:]))
    return value.contiguous()
