"""Planning that leaves a machine's cores to whoever answers people first: a server next to it, a user's other work."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

_NICE = 10


def lower() -> None:
    """Lower the priority of this process and of all that it starts: they get the cores that others leave."""
    os.nice(_NICE)
    share_by_niceness()


def share_by_niceness() -> None:
    """Let the niceness of this process count in a session of its own. Linux may give every session the same share of
    the cores, whatever its processes say (``sched(7)``, autogroup). So a session that begins with a nice process is
    made as nice. Elsewhere: nothing."""
    niceness = os.nice(0)
    if sys.platform == "linux" and niceness > 0:
        # Absent or not to be written in many containers, which have shares of their own.
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(niceness))
