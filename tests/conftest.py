"""What every test runs under."""

from __future__ import annotations

import gc
import os
import uuid
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

from loadmaster.solvers import process
from tests.in_process_solves import running_solve

# How long an example takes says more of the machine than of the code.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

pytest_plugins = ["tests.cpu_seconds"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests were skipped, by reason."""
    skipped = Counter(
        report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", ())
    )
    for reason, tests in skipped.most_common():
        terminalreporter.write_line(f"skipped {tests}: {reason}")


# Two workers share two cores: libraries that start a thread for each would have them wait for each other. What is
# imported later reads it, and so do processes that tests start.
for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

# Here each solve keeps the process of its own that it has outside the tests.
WITH_PROCESSES = Path(__file__).parent / "solvers"


@pytest.fixture(autouse=True)
def solves_in_this_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small solves need no process of their own here, unless the test is marked ``solver_process``."""
    if request.node.get_closest_marker("solver_process") is None and WITH_PROCESSES not in request.path.parents:
        monkeypatch.setattr(process, "RunningSolve", running_solve)


@pytest.fixture(scope="module", autouse=True)
def old_objects_are_let_be() -> None:
    """A look for garbage goes through what a file makes, not through the million objects that are there before it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_kept(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one run leaves on disk for the next is no test's."""
    monkeypatch.setenv("LOADMASTER_MEASUREMENT_CACHE", str(tmp_path_factory.getbasetemp() / uuid.uuid4().hex))
