"""Planning takes the cores that are left: niceness that counts across sessions, for whatever a nice process starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

GROUP = Path("/proc/self/autogroup")
SAY = "import os, pathlib; print(os.nice(0), pathlib.Path('/proc/self/autogroup').read_text().split()[-1])"


def said(program: str) -> list[int]:
    """Two numbers that a program in a session of its own prints."""
    command = [sys.executable, "-c", f"from loadmaster import priority; {program}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, start_new_session=True)
    return [int(word) for word in done.stdout.split()]


def shares_are_per_session() -> bool:
    return GROUP.exists() and os.access(GROUP, os.W_OK)


def test_planning_is_nicer_than_who_starts_it() -> None:
    before, after = said("import os; print(os.nice(0)); priority.lower(); print(os.nice(0))")
    assert after == min(19, before + 10)


@pytest.mark.skipif(not shares_are_per_session(), reason="sessions have no shares of their own here")
def test_a_session_is_as_nice_as_its_process() -> None:
    niceness, of_session = said(f"priority.lower(); {SAY}")
    assert niceness == of_session >= 10
    niceness, of_session = said(f"import os; os.nice(3); priority.share_by_niceness(); {SAY}")
    assert niceness == of_session >= 3
