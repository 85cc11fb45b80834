"""``python -m loadmaster.executor.fit_command``: what ``loadmaster fit`` runs in a process of its own, and plans for.

The command line's floor never imports torch, and this floor never plans: problems go out over a pipe, plans come back.
"""

from __future__ import annotations

import sys

from loadmaster.errors import CancelledError

if __name__ == "__main__":
    try:
        # Here, because PyTorch takes its time to import, and whoever interrupts that needs no traceback.
        from loadmaster.executor.memory.fit.command import main

        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(CancelledError.exit_status)
