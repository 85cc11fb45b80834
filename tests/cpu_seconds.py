"""What the tests cost, in processor seconds: counted in every run, kept for comparison in ``tests/cpu_seconds.json``.

    pytest tests/models --record-cpu-seconds      # writes the rows of the files that ran

Processor time of this process and of those it waited for, not wall time: it is nearly the same on a loaded machine. It
still is another number on another machine, so a run only reports it.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from loadmaster.models.kinds import KINDS

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_suffix(".json")
SLOW_FROM_S = 2.0
COMMON_ROOMS = {"steps", "costs"}  # graphs of operators are no graphs of nodes


@dataclass
class FileCost:
    """Of one test file: seconds of its tests in the fast core, of the dearest among them, and of its slow ones."""

    fast_s: float = 0.0
    dearest_fast_s: float = 0.0
    slow_s: float = 0.0


def kind_of(path: str) -> str:
    """The kind that a test file (relative to the root) belongs to; ``house`` for what all kinds share."""
    rooms = {*Path(path).parent.parts}
    words = set() if COMMON_ROOMS & rooms else {*Path(path).stem.split("_")}
    return min(KINDS.keys() & (rooms | words), default="house")


def recorded() -> dict[str, FileCost]:
    """The table, without the rows of files that are gone."""
    rows = json.loads(TABLE.read_text("utf-8"))
    return {path: FileCost(**row) for path, row in rows.items() if (ROOT / path).exists()}


def spent_s() -> float:
    """Processor seconds of this process and of all that it started, ended or not."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in both) + _of_children_s("self")


def _of_children_s(process: str) -> float:
    """Of those that still run (fork servers, services), and of what they started; 0 where there is no /proc."""
    spent, threads = 0.0, f"/proc/{process}/task"
    # Each may end while it is looked at.
    with contextlib.suppress(OSError):
        for thread in os.listdir(threads):
            with contextlib.suppress(OSError), open(f"{threads}/{thread}/children") as listing:
                for child in listing.read().split():
                    fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                    spent += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") + _of_children_s(child)
    return spent


@dataclass(eq=False)
class Costs:
    """Adds up what the reports of the tests say; with pytest-xdist, in the process that the workers report to."""

    record: bool
    mark_s: float = 0.0
    tests: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    slow: set[str] = field(default_factory=set)

    def pytest_runtest_logstart(self) -> None:
        self.mark_s = spent_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
        report: Any = yield
        # A report's own attributes are what travels from a worker to the process that sums up. The last one of a test
        # brings what all of it took: each look at what was spent takes a while, too.
        report.cpu_seconds = spent_s() - self.mark_s if call.when == "teardown" else 0.0
        report.is_slow = item.get_closest_marker("slow") is not None
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        # A worker that died wrote no report of its own.
        self.tests[report.nodeid] += getattr(report, "cpu_seconds", 0.0)
        if getattr(report, "is_slow", False):
            self.slow.add(report.nodeid)

    def files(self) -> dict[str, FileCost]:
        """The cost of each test file of this run."""
        files: defaultdict[str, FileCost] = defaultdict(FileCost)
        for test, seconds in self.tests.items():
            row = files[test.partition("::")[0]]
            if test in self.slow:
                row.slow_s += seconds
            else:
                row.fast_s += seconds
                row.dearest_fast_s = max(row.dearest_fast_s, seconds)
        return files

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        files = self.files()
        kinds: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for path, row in files.items():
            kinds[kind_of(path)][0] += row.fast_s
            kinds[kind_of(path)][1] += row.slow_s
        said = ", ".join(f"{kind} {fast:.0f} + {slow:.0f} slow" for kind, (fast, slow) in sorted(kinds.items()))
        terminalreporter.write_line(f"processor seconds: {said}")
        for test, seconds in sorted(self.tests.items(), key=lambda row: -row[1])[:10]:
            if seconds >= SLOW_FROM_S:
                note = "" if test in self.slow else "  (not marked slow)"
                terminalreporter.write_line(f"  {seconds:6.1f}  {test}{note}")
        if self.record:
            write(files)


def write(files: dict[str, FileCost]) -> None:
    """Put the rows of these files into the table."""
    table = recorded() if TABLE.exists() else {}
    table.update(files)
    rows = {path: {name: round(s, 1) for name, s in vars(row).items()} for path, row in sorted(table.items())}
    lines = ",\n".join(f"  {json.dumps(path)}: {json.dumps(row)}" for path, row in rows.items())
    TABLE.write_text(f"{{\n{lines}\n}}\n", "utf-8")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-cpu-seconds", action="store_true", help="write what each test file costs to the table")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Costs(config.getoption("--record-cpu-seconds")), "cpu-seconds")
