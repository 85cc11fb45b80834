"""What keeps a server or a worker from starting is said in a line, with the status that bad input has."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

EMPTY = {**os.environ, "LOADMASTER_WORKERS": "0"}


def started(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=EMPTY | environment, timeout=120, check=False)


@pytest.mark.slow
def test_a_port_that_is_taken(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'service.db'}"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = started("loadmaster.api.cli", "serve", "--port", port, "--database-url", url)
    assert ended.returncode == 2, ended.stderr
    assert f"error: port: cannot be listened on (found '127.0.0.1:{port}')" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_worker_that_cannot_work(tmp_path: Path) -> None:
    ended = started("loadmaster.api.worker", LOADMASTER_DATABASE_URL=f"sqlite:///{tmp_path}")
    assert ended.returncode == 2, ended.stderr
    assert "database_url: cannot be opened" in ended.stderr and "Traceback" not in ended.stderr
