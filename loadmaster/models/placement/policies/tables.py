"""The tables of correlation prefetching [DeepUM23] section 4.2: which kernel follows, and which block follows within.
Kernels are known by execution id, blocks by number.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from loadmaster.models.placement.problem import PlacementProblem

History = tuple[int, int, int]


def execution_ids(problem: PlacementProblem) -> list[int]:
    """Number the kernel of every operator. Operators that are equal to whoever launches them (name, sizes of what they
    read and write, time, workspace) are one kernel, as are the paper's whose name and arguments have one hash."""
    sizes = [block.size_bytes for block in problem.blocks]
    numbers: dict[object, int] = {}
    found = []
    for o in problem.operators:
        read, written = tuple(sizes[b] for b in o.reads), tuple(sizes[b] for b in o.writes)
        alike = (o.op, read, written, o.time_us, o.workspace_bytes)
        found.append(numbers.setdefault(alike, len(numbers)))
    return found


@dataclass
class ExecutionTable:
    """Kernels that came next after a kernel and the three before it, the latest first; any number of records."""

    _next: dict[int, dict[History, list[int]]] = field(default_factory=dict)

    def record(self, before: History, current: int, following: int) -> None:
        """Record that ``following`` ran after ``current``, which ran after the three ``before`` it."""
        seen = self._next.setdefault(current, {}).setdefault(before, [])
        if following in seen:
            seen.remove(following)
        seen.insert(0, following)

    def predict(self, before: History, current: int) -> list[int]:
        """The kernels that came after ``current``, where just this was seen."""
        return self._next.get(current, {}).get(before, [])


@dataclass
class BlockTable:
    """Blocks of one kernel that were used right after each of its blocks, the latest first.

    A block belongs to row ``block % rows``. A row has room for ``associativity`` blocks, each with ``successors``
    successors; the entry that was written longest ago gives way.
    """

    rows: int
    associativity: int
    successors: int
    _entries: dict[int, dict[int, list[int]]] = field(default_factory=dict)

    def record(self, block: int, following: int) -> None:
        """Record that ``following`` was used right after ``block``."""
        row = self._entries.setdefault(block % self.rows, {})
        entry = row.pop(block, [])
        if following in entry:
            entry.remove(following)
        row[block] = [following, *entry[: self.successors - 1]]
        if len(row) > self.associativity:
            oldest = next(iter(row))
            del row[oldest]

    def following(self, block: int) -> list[int]:
        """Blocks that came right after a block, the latest first."""
        return self._entries.get(block % self.rows, {}).get(block, [])
