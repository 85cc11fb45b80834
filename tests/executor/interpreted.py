"""Runs Triton kernels in Triton's interpreter, on a CPU, in a program of their own.

Triton decides at its import whether to interpret, and the interpreter checks no bounds, so that a store out of range
may end the process. Such a program has :class:`tests.executor.interpreted_cases.Cases`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MARKS = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton (the triton extra)"),
]


def said_by(module: str, timeout_s: float = 240.0, **environment: str) -> dict[str, str]:
    """What went wrong in each case of a program: its traceback, or nothing."""
    ended = subprocess.run(
        [sys.executable, "-m", module],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", **environment},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    found: dict[str, str] = json.loads(ended.stdout.splitlines()[-1])
    return found
