"""Processes that may not outlive the one that started them.

Each looks for itself whether its parent is still there. One that was stopped (SIGSTOP, Ctrl-Z) cannot look, so the
kernel wakes it when its parent ends.
"""

from __future__ import annotations

import ctypes
import signal
import sys

# Of linux/prctl.h.
_PR_SET_PDEATHSIG = 1


def wake_when_orphaned() -> None:
    """Let the kernel continue this process when the thread that started it ends. Elsewhere than on Linux: nothing."""
    if sys.platform == "linux":
        # Not SIGKILL: what this process has started and written is for it to end and to remove.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)
