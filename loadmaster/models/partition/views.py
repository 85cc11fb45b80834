"""Views of a tensor, and what a split of the view is on the tensor itself.

A view is a chain of stages. A stage cuts every dimension into *factors*, reorders them, spreads some that have one
element, and joins them to dimensions again; or it takes a slice of one dimension. A *cut* of a dimension says which
part of it is split: the dimension is seen as (outer, split, inner), outer x split x inner elements.

Example: x [4, 6, 10] seen as [24, 10] and split over its first dimension. With outer = 1, the four samples are split,
and so is x, as S0. With outer = 4, the six of every sample are: x as S1. Each worker then sees its own [4 x 6/n, 10].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Cut:
    """The part of a dimension that is split, with ``outer`` elements of the dimension's factors before it. The number
    of equal units that are shared is a divisor of ``unit``."""

    dim: int
    outer: int = 1
    unit: int = 0

    def at(self, dim: int, outer: int, extent: int) -> Cut:
        """Move the split to another tensor, where the part has that extent."""
        return Cut(dim, outer, math.gcd(self.unit, extent))


@dataclass(frozen=True)
class Factor:
    """A part of a dimension. ``source`` is the dimension of the tensor before, None: spread from one element; ``outer``
    counts the elements of the factors before it there."""

    extent: int
    source: int | None
    outer: int = 1


@dataclass(frozen=True)
class Stage:
    """Factors in the order of the view, and how many make up each of its dimensions.

    Attributes:
        of: the shape before.
        dims: numbers of factors, for each dimension of the view.
        kept: (dim, start, stop, step): a slice of one dimension of the view, taken last.
    """

    of: Shape
    factors: tuple[Factor, ...]
    dims: tuple[int, ...]
    kept: tuple[int, int, int, int] | None = None

    @property
    def shape(self) -> Shape:
        """Shape of the view after this stage."""
        found = [math.prod(f.extent for f in row) for row in self.rows]
        if self.kept is not None:
            dim, *bounds = self.kept
            found[dim] = len(range(*bounds))
        return tuple(found)

    @property
    def rows(self) -> list[tuple[Factor, ...]]:
        """The factors of each dimension."""
        ends = [sum(self.dims[: n + 1]) for n in range(len(self.dims))]
        return [self.factors[end - count : end] for end, count in zip(ends, self.dims, strict=True)]

    def found(self, cut: Cut) -> tuple[int, Factor] | None:
        """The factor that a cut splits, and its number; None where no factor begins there, or a slice was taken."""
        if self.kept is not None and self.kept[0] == cut.dim:
            return None
        outer, number = 1, sum(self.dims[: cut.dim])
        for factor in self.rows[cut.dim]:
            if outer == cut.outer and factor.extent > 1:
                return number, factor
            outer *= factor.extent
            number += 1
        return None


@dataclass(frozen=True)
class ShapeView:
    """Stages one after the other; none: the tensor itself."""

    of: Shape
    stages: tuple[Stage, ...] = ()

    @property
    def shape(self) -> Shape:
        """Shape of the view."""
        return self.stages[-1].shape if self.stages else self.of

    @property
    def is_identity(self) -> bool:
        """True if the view is the tensor itself."""
        rows = [row for stage in self.stages for row in stage.rows]
        if len(self.stages) > 1 or self.shape != self.of:
            return not self.stages
        if any(stage.kept is not None for stage in self.stages):
            return False
        return all(all(f.source == d for f in row if f.extent > 1) for d, row in enumerate(rows))

    def traced(self, cut: Cut) -> Cut | None:
        """Trace a cut of the view to a cut of the tensor; None where none exists. A spread one has dim -1."""
        for stage in reversed(self.stages):
            found = stage.found(cut)
            if found is None:
                return None
            factor = found[1]
            if factor.source is None:
                return cut.at(-1, 1, factor.extent)
            cut = cut.at(factor.source, factor.outer, factor.extent)
        return cut

    def starts(self, dim: int) -> list[int]:
        """Elements before each factor of a dimension."""
        if not self.stages or (self.stages[-1].kept or (-1,))[0] == dim:
            return [1]
        found, outer = [], 1
        for factor in self.stages[-1].rows[dim]:
            if factor.extent > 1:
                found.append(outer)
            outer *= factor.extent
        return found or [1]

    def local(self, cuts: Sequence[tuple[Cut, Fraction]]) -> list[list[int]]:
        """Extents of each stage's factors on one worker, by its share of each cut of the view."""
        extents = [[f.extent for f in stage.factors] for stage in self.stages]
        for cut, share in cuts:
            at: Cut = cut
            for n in range(len(self.stages) - 1, -1, -1):
                found = self.stages[n].found(at)
                assert found is not None, "a strategy splits what it can"
                number, factor = found
                extents[n][number] = int(extents[n][number] * share)
                if factor.source is None:
                    break
                at = Cut(factor.source, factor.outer)
        return extents

    # What views do, each None where no cut could be told from it

    def reshaped(self, shape: Sequence[int]) -> ShapeView | None:
        """View of the same elements in the same order as another shape; None where factors do not divide."""
        stage = self._last()
        factors, dims, left = [], [], list(stage.factors)
        for extent in shape:
            count, made = 0, 1
            while made < extent:
                if not left:
                    return None
                factor = left.pop(0)
                need = extent // made
                if max(need, factor.extent) % min(need, factor.extent):
                    return None
                if factor.extent > need:
                    left.insert(0, replace(factor, extent=factor.extent // need, outer=factor.outer * need))
                    factor = replace(factor, extent=need)
                factors.append(factor)
                made *= factor.extent
                count += 1
            while left and left[0].extent == 1:
                left.pop(0)
            dims.append(count)
        return self._with(replace(stage, factors=tuple(factors), dims=tuple(dims)))

    def permuted(self, dims: Sequence[int]) -> ShapeView:
        """View with its dimensions in another order."""
        stage = self._last()
        rows = [stage.rows[d] for d in dims]
        return self._with(replace(stage, factors=sum(rows, ()), dims=tuple(map(len, rows))))

    def expanded(self, shape: Sequence[int]) -> ShapeView:
        """View with dimensions of one element spread, and new ones before."""
        stage = self._last()
        rows: list[tuple[Factor, ...]] = [()] * (len(shape) - len(stage.dims)) + stage.rows
        spread = [
            (Factor(extent, None),) if extent > 1 and math.prod(f.extent for f in row) == 1 else row
            for extent, row in zip(shape, rows, strict=True)
        ]
        return self._with(replace(stage, factors=sum(spread, ()), dims=tuple(map(len, spread))))

    def sliced(self, dim: int, start: int, stop: int, step: int = 1) -> ShapeView:
        """View of some elements of a dimension."""
        if (start, stop, step) == (0, self.shape[dim], 1):
            return self
        return self._with(replace(self._last(), kept=(dim, start, stop, step)))

    def _last(self) -> Stage:
        """The last stage where it can go on, else a new one after it."""
        if self.stages and self.stages[-1].kept is None:
            return self.stages[-1]
        shape = self.shape
        return Stage(shape, tuple(Factor(extent, d) for d, extent in enumerate(shape)), (1,) * len(shape))

    def _with(self, stage: Stage) -> ShapeView:
        before = self.stages[:-1] if self.stages and self.stages[-1].kept is None else self.stages
        return ShapeView(self.of, (*before, stage))
