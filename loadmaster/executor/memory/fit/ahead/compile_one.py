"""A process that compiles one job: ``python -m loadmaster.executor.memory.fit.ahead.compile_one``.

It gets ready, reads the job's path as a line from its standard input, compiles it and ends. It ends at once where its
input does: its parent process is gone.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from loadmaster.executor.memory.fit.ahead.job import Job

NICE = 10  # its parent process comes first


def main() -> None:
    """Compile what standard input names."""
    os.nice(NICE)
    path = sys.stdin.readline().strip()
    if path:
        threading.Thread(target=_watch, daemon=True).start()
        Job.load(Path(path)).run()
        sys.stderr.flush()
    os._exit(0)  # nothing is left to be done in good order, and what Inductor has started takes its time


def _watch() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main()
