"""Rows of states in files, which the program of a training step (:mod:`loadmaster.models.training.formulation`) adds to
its own where the host has a disk.

Sets and variables are those of the program; w are ways with state in files, x[r,w] their groups.
(D1)  the disk writes and reads all of them in a step: sum of (write us + read us) x[r,w] <= sum of tau[s] - `disk_time`
(D2)  what files hold fits the disk - `disk_capacity`
(D3)  the host holds a buffer as large as any state in files beside what (T6) counts: for each r, that plus state_bytes
      times the part of the groups of r with state in files - `disk_buffers`

Every plan that the checker passes keeps them. (D1): the disk does one thing at a time, and in each step that repeats as
many writes and reads of each state as steps. (D3): there is one buffer at least, of the largest state's size, and the
part is at most one, and none where no state of r is in files.
"""

from __future__ import annotations

from loadmaster.models.training.columns import Columns, Terms
from loadmaster.models.training.residency import host_bytes
from loadmaster.models.training.rows import add_row, each_of
from loadmaster.solvers.program import ProgramBuilder


def disk_rows(b: ProgramBuilder, c: Columns, unit_us: float) -> None:
    """Add all rows of states in files; none where there is no disk."""
    if c.runs.problem.disk is not None:
        disk_time(b, c, unit_us)
        disk_capacity(b, c)
        disk_buffers(b, c)


def disk_time(b: ProgramBuilder, c: Columns, unit_us: float) -> None:
    """Add (D1): the disk writes and reads all states in files in a step."""
    disk = c.runs.problem.disk
    assert disk is not None
    terms: Terms = []
    for r in range(len(c.groups)):
        size = c.runs.alike(r).state_bytes
        terms += each_of(_in_files(c, r), (disk.store_us(size) + disk.load_us(size)) / unit_us)
    rows = b.row_list("disk_time")
    if terms:
        add_row(rows, terms + each_of(c.tau, -1.0), upper=0.0)
    rows.done()


def disk_capacity(b: ProgramBuilder, c: Columns) -> None:
    """Add (D2): what files hold fits the disk."""
    disk = c.runs.problem.disk
    if disk is None or disk.capacity_bytes is None:
        return
    scale = max(disk.capacity_bytes, 1)
    terms: Terms = []
    for r in range(len(c.groups)):
        terms += each_of(_in_files(c, r), c.runs.alike(r).state_bytes / scale)
    rows = b.row_list("disk_capacity")
    add_row(rows, terms, upper=disk.capacity_bytes / scale)
    rows.done()


def disk_buffers(b: ProgramBuilder, c: Columns) -> None:
    """Add (D3): the host has a buffer for any state in files beside all else."""
    capacity = c.runs.problem.host.capacity_bytes
    if capacity is None:
        return
    scale = max(capacity, 1)
    held = {
        int(x): host_bytes(c.runs.alike(r), way) / scale
        for r, g in enumerate(c.groups)
        for x, way in zip(g.x, g.ways, strict=True)
    }
    rows = b.row_list("disk_buffers")
    for r, run in enumerate(c.runs.groups):
        size = c.runs.alike(r).state_bytes / len(run.groups) / scale
        if in_files := _in_files(c, r):
            held_with_buffer = held | {x: held[x] + size for x in in_files}
            add_row(rows, list(held_with_buffer.items()), upper=capacity / scale)
    rows.done()


def _in_files(c: Columns, r: int) -> list[int]:
    """List the columns of a group run's ways with state in files."""
    g = c.groups[r]
    return [int(x) for x, way in zip(g.x, g.ways, strict=True) if way.state == "disk"]
