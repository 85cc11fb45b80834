"""``python -m loadmaster.api.worker [WORKER_ID PARENT_PID]``: one worker process, set by the environment.

With arguments it was started by a server's supervisor, and ends when that server does.
"""

from __future__ import annotations

import logging
import sys

from loadmaster.api import logs
from loadmaster.api.settings import Settings
from loadmaster.api.worker.work import work
from loadmaster.errors import LoadmasterError

logger = logging.getLogger(__name__)


def main() -> int:
    """Run the process; returns its exit status."""
    settings = Settings.from_environment()
    logs.configure(settings)
    try:
        if len(sys.argv) > 1:
            work(settings, worker_id=sys.argv[1], parent_pid=int(sys.argv[2]))
        else:
            work(settings)
    except LoadmasterError as error:
        logger.error("%s", error)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
