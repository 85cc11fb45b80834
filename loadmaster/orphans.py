"""Processes that may not outlive the one that started them.

Each looks for itself whether its parent is still there, and ends with its files where it is not. One that was stopped
(SIGSTOP, Ctrl-Z) cannot look, so the kernel wakes it when its parent ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import sys
import time

# From linux/prctl.h.
_PR_SET_PDEATHSIG = 1


def wake_when_orphaned() -> None:
    """Let the kernel continue this process when the thread that started it ends. Does nothing outside Linux."""
    if sys.platform == "linux":
        # Not SIGKILL: what this process has started and written is for it to end and to remove.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)


def end_with_files(folder: str) -> None:
    """Kill this process's group, itself and what it has started, and remove a folder. Does not return. The files go
    last, by a fork: a solver that still runs would write them again, there or somewhere else."""
    group, process = os.getpgid(0), os.getpid()
    try:
        fork = os.fork()
    except OSError:
        # No memory for one: the files stay, the processes do not.
        os.killpg(group, signal.SIGKILL)
        return
    if fork:
        os.waitpid(fork, 0)
        return
    os.setpgid(0, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    while os.getppid() == process:
        time.sleep(0.001)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)
