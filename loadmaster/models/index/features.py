"""A trace in a few numbers: how many keys, which operations, how skewed, and how hard the keys are for linear models.

How hard keys are is how few of them one line of an optimal piecewise linear approximation covers ([Ferragina20]), for
two errors: small ones between neighbours, which make searches in a leaf longer, and large ones over the whole range,
which make the tree deeper. Both are measured on samples, so that a trace of any length takes a moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from loadmaster.models.fields import Bounds, Index
from loadmaster.models.index.segments import segments
from loadmaster.models.index.trace import ERASE, INSERT, LOOKUP, SCAN, Keys, Trace
from loadmaster.solvers.program import FloatArray

# Errors, in places, of the lines that are counted.
LOCAL_EPSILON, GLOBAL_EPSILON = 32, 4096
# Neighbours are looked at in so many windows of so many keys, the whole range in so many keys.
_WINDOWS, _WINDOW_KEYS, _SAMPLE_KEYS = 4, 8192, 8192
# Of the keys that are present, the most asked for are so many.
_HOT = 0.01

_Count = Annotated[float, Bounds(ge=0, le=1e18)]
_Share = Annotated[float, Bounds(ge=0, le=1)]


@dataclass(frozen=True)
class Features:
    """Known facts about a trace.

    Attributes:
        keys: that are loaded.
        lookups, inserts, erases, scans: operations of each sort.
        hot_share: of lookups, how many go to the 1 % of keys that are looked up most. Uniform lookups: little above
            0.01 where there are many of each key.
        local_keys, global_keys: that one line covers on average, with an error of 32 and of 4096 places. No more than
            the samples have.
    """

    keys: Index
    lookups: _Count
    inserts: _Count
    erases: _Count
    scans: _Count
    hot_share: _Share
    local_keys: Annotated[float, Bounds(ge=1)]
    global_keys: Annotated[float, Bounds(ge=1)]

    @property
    def operations(self) -> float:
        """Number of operations of all sorts."""
        return self.lookups + self.inserts + self.erases + self.scans

    @property
    def write_share(self) -> float:
        """Share of operations that change the index."""
        return (self.inserts + self.erases) / self.operations if self.operations else 0.0


def features(trace: Trace) -> Features:
    """The features of a trace."""
    counts = {code: int((trace.operations == code).sum()) for code in (LOOKUP, INSERT, ERASE, SCAN)}
    keys = np.sort(trace.keys)
    looked_up = trace.operation_keys[trace.operations == LOOKUP]
    return Features(
        keys=len(keys),
        lookups=float(counts[LOOKUP]),
        inserts=float(counts[INSERT]),
        erases=float(counts[ERASE]),
        scans=float(counts[SCAN]),
        hot_share=hot_share(looked_up, len(keys) + counts[INSERT]),
        local_keys=local_keys(keys),
        global_keys=global_keys(keys),
    )


def hot_share(looked_up: Keys, present: int) -> float:
    """Share of lookups that go to the 1 % of all keys that are looked up most."""
    if not len(looked_up):
        return 0.0
    _, counts = np.unique(looked_up, return_counts=True)
    hot = max(1, int(_HOT * present))
    return float(np.sort(counts)[::-1][:hot].sum() / len(looked_up))


def local_keys(keys: Keys) -> float:
    """Keys that a line covers on average among neighbours, with an error of 32 places. ``keys`` ascend."""
    count = min(len(keys), _WINDOW_KEYS)
    starts = sorted({int(s) for s in np.linspace(0, len(keys) - count, _WINDOWS)})
    return _keys_per_line([keys[s : s + count] for s in starts], LOCAL_EPSILON)


def global_keys(keys: Keys) -> float:
    """Keys that a line covers on average over the whole range, with an error of 4096 places. ``keys`` ascend."""
    step = max(1, len(keys) // _SAMPLE_KEYS)
    return min(_keys_per_line([keys[::step]], GLOBAL_EPSILON, step), float(max(1, len(keys))))


def _keys_per_line(parts: Sequence[Keys], epsilon: int, step: int = 1) -> float:
    lines = sum(segments(part, epsilon, step) for part in parts)
    return max(1.0, step * sum(map(len, parts)) / max(1, lines))


def image(keys: Keys, size: int = 16) -> FloatArray:
    """Distribution of keys as a picture, [size, size]: the share of them by place (rows) and by key (columns)."""
    ordered = np.sort(keys)
    picture = np.zeros((size, size))
    if not len(ordered):
        return picture
    low = int(ordered[0])
    span = int(ordered[-1]) - low + 1
    column = np.minimum(((ordered - np.uint64(low)).astype(np.float64) * (size / span)).astype(np.int64), size - 1)
    row = np.arange(len(ordered)) * size // len(ordered)
    np.add.at(picture, (row, column), 1.0 / len(ordered))
    return picture
