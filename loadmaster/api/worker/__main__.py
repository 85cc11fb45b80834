"""``python -m loadmaster.api.worker [WORKER_ID]``: one worker process, set by the environment.

With an id it was started by a server's supervisor, and ends when that server does.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from loadmaster.api import logs
from loadmaster.api.settings import Settings
from loadmaster.api.worker.worker import Worker

_WATCH_EVERY_S = 0.5


def work(settings: Settings, *, worker_id: str | None = None) -> None:
    """Run a worker in this process until SIGTERM or SIGINT; its job then goes back to the queue."""
    worker = Worker(settings, worker_id=worker_id)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: worker.stop())
    if worker_id is not None:
        threading.Thread(target=_watch_parent, args=(worker, os.getppid()), daemon=True).start()
    worker.run()


def _watch_parent(worker: Worker, parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_WATCH_EVERY_S)
    worker.stop()


def main() -> None:
    """Entry point of the process."""
    settings = Settings.from_environment()
    logs.configure(settings)
    work(settings, worker_id=sys.argv[1] if len(sys.argv) > 1 else None)


if __name__ == "__main__":
    main()
