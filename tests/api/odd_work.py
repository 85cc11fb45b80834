"""Work for processes of their own that is hard to bear: endless, greedy, large."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import IO


def noted(marker: str) -> int:
    """Note the process, and say which it is."""
    with Path(marker).open("a") as notes:
        notes.write(f"{os.getpid()}\n")
    return os.getpid()


def endless(marker: str) -> None:
    noted(marker)
    time.sleep(600.0)


def greedy(size_bytes: int) -> int:
    return len(bytearray(size_bytes))


def crash() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def write(file: IO[bytes], size_bytes: int, content: bytes) -> None:
    file.write(content * (size_bytes // len(content)))
