"""The image does its work: built by the Dockerfile's own steps, started read-only, asked, and told to stop."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from loadmaster.api.client import Client
from loadmaster.models.memory import presets
from tests.architecture.emulated_image import Image, can_emulate

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not can_emulate(), reason="the image is emulated by mounts, which need root"),
]

HANG_S = 240.0


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    made = Image()
    yield made
    made.remove()


@pytest.fixture(scope="module")
def port() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG_S
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


@contextmanager
def running(image: Image, port: str) -> Iterator[subprocess.Popen[str]]:
    """The service, once it is healthy."""
    environment = {"LOADMASTER_PORT": port}
    service = image.start(environment=environment)
    try:
        wait_until(lambda: image.health(environment))
        yield service
    finally:
        service.terminate()
        service.wait()


def test_only_the_volume_and_tmp_can_be_written(image: Image) -> None:
    tried = "for path in /x /opt/loadmaster/x /usr/x /etc/x /data/x /tmp/x; do touch $path && echo $path; done"
    assert image.execute("sh", "-c", tried).stdout.split() == ["/data/x", "/tmp/x"]


def test_it_carries_the_server_and_no_torch(image: Image) -> None:
    program = "import importlib.util as u, os; print(os.getuid(), *(u.find_spec(n) is not None for n in %r))"
    done = image.execute("python", "-c", program % (("fastapi", "psycopg", "highspy", "torch", "hatchling", "pytest"),))
    assert done.stdout.split() == [str(image.user_id), "True", "True", "True", "False", "False", "False"], done.stderr


def test_nobody_is_healthy_where_nothing_runs(image: Image, port: str) -> None:
    assert not image.health({"LOADMASTER_PORT": port})


def test_it_plans_and_drains_when_told_to_stop(image: Image, port: str) -> None:
    """The solve that runs goes back to the queue, and the next start takes it up again."""
    with running(image, port) as service:
        made = image.execute("loadmaster", "keys", "add", "ann", "--scope", "submit")
        assert made.returncode == 0, made.stderr
        with Client(f"http://127.0.0.1:{port}", api_key=made.stdout.strip()) as client:
            quick = client.submit(presets.chain(8, 1 << 20), {"budget_bytes": "60%"})
            assert quick.document(HANG_S)["status"] == "optimal"
            unhurried = {"budget_bytes": "5GiB", "time_limit_s": 3600.0, "gap": 0.0}
            long = client.submit(presets.example("unet-b11-full"), unhurried)
            wait_until(lambda: long.state().state == "running")
            assert service.pid in image.processes()
            service.send_signal(signal.SIGTERM)
            # Uvicorn ends by the signal that stopped it, once everything is in order.
            assert service.wait(HANG_S) in (0, -signal.SIGTERM)
            wait_until(lambda: not image.processes())
            with running(image, port):
                wait_until(lambda: long.state().state == "running")
                long.cancel()
                assert long.wait(HANG_S).state == "cancelled"
