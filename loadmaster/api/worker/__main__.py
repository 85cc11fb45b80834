"""``python -m loadmaster.api.worker [WORKER_ID]``: one worker process, set by the environment.

With an id it was started by a server's supervisor, and ends when that server does.
"""

from __future__ import annotations

import sys

from loadmaster.api import logs
from loadmaster.api.settings import Settings
from loadmaster.api.worker.worker import work


def main() -> None:
    """Entry point of the process."""
    settings = Settings.from_environment()
    logs.configure(settings)
    work(settings, worker_id=sys.argv[1] if len(sys.argv) > 1 else None)


if __name__ == "__main__":
    main()
