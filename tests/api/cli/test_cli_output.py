"""Standard output that takes no more, as on a full disk, is told in a line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LIST = [sys.executable, "-m", "loadmaster.api.cli", "hardware", "list"]


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no /dev/full here")
def test_a_full_disk() -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(LIST, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert ended.returncode == 1
    assert ended.stderr == "error: standard output cannot be written: No space left on device. Write elsewhere.\n"
