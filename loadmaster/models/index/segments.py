"""The fewest lines that follow ascending keys to within an error: the measure of how hard they are for linear models.

One pass [ORourke81]: as long as some line goes through the bars ``place - epsilon`` to ``place + epsilon`` of all keys
so far, it goes on. Each segment is as long as it can be, which makes them the fewest. In whole numbers, so that keys of
64 bits lose nothing.
"""

from __future__ import annotations

from loadmaster.models.index.trace import Keys

_Point = tuple[int, int]


def segments(keys: Keys, epsilon: int, step: int = 1) -> int:
    """Number of lines that it takes to follow the keys.

    Args:
        keys: ascending; those that are there twice count once.
        epsilon: the largest error, in places, at least 0.
        step: places from one key to the next, where these are a sample of all.
    """
    count, line, before = 0, _Line(), None
    for number, key in enumerate(keys.tolist()):
        if key == before:
            continue
        before, place = key, number * step
        if count and line.takes((key, place + epsilon), (key, place - epsilon)):
            continue
        count, line = count + 1, _Line()
        line.takes((key, place + epsilon), (key, place - epsilon))
    return count


class _Line:
    """All lines through the bars so far, by the steepest and the flattest one. The flattest goes through an upper end
    and a later lower one, the steepest through a lower and a later upper one. Of the ends, only a convex chain can come
    to bound a line again."""

    def __init__(self) -> None:
        self._upper: list[_Point] = []
        self._lower: list[_Point] = []
        self._upper_from = self._lower_from = 0
        self._flattest = self._steepest = ((0, 0), (0, 0))

    def takes(self, high: _Point, low: _Point) -> bool:
        """Return whether some line goes through the bar from ``low`` to ``high``, too; if so, take the bar."""
        if len(self._upper) < 2 and len(self._lower) < 2:
            self._first_two(high, low)
            return True
        flat_from, flat_to = self._flattest
        steep_from, steep_to = self._steepest
        if _turn(flat_from, flat_to, high) < 0 or _turn(steep_from, steep_to, low) > 0:
            return False
        if _turn(steep_from, steep_to, high) < 0:
            at = self._lower_from
            while at + 1 < len(self._lower) and _turn(self._lower[at], self._lower[at + 1], high) <= 0:
                at += 1
            self._lower_from, self._steepest = at, (self._lower[at], high)
            while len(self._upper) >= self._upper_from + 2 and _turn(self._upper[-2], self._upper[-1], high) <= 0:
                self._upper.pop()
            self._upper.append(high)
        if _turn(flat_from, flat_to, low) > 0:
            at = self._upper_from
            while at + 1 < len(self._upper) and _turn(self._upper[at], self._upper[at + 1], low) >= 0:
                at += 1
            self._upper_from, self._flattest = at, (self._upper[at], low)
            while len(self._lower) >= self._lower_from + 2 and _turn(self._lower[-2], self._lower[-1], low) >= 0:
                self._lower.pop()
            self._lower.append(low)
        return True

    def _first_two(self, high: _Point, low: _Point) -> None:
        if self._upper:
            self._flattest, self._steepest = (self._upper[0], low), (self._lower[0], high)
        self._upper.append(high)
        self._lower.append(low)


def _turn(a: _Point, b: _Point, c: _Point) -> int:
    """Side of ``c``: above 0 if it is above the line from ``a`` through ``b``, 0 on the line."""
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])
