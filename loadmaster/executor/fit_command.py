"""``python -m loadmaster.executor.fit_command``: what ``loadmaster fit`` runs in a process of its own, and plans for.

The command line's floor never imports torch, and this floor never plans: problems go out over a pipe, plans come back.
"""

from __future__ import annotations

import sys

from loadmaster.errors import CancelledError


def main() -> int:
    """Run ``loadmaster fit``; return its exit status."""
    try:
        # Here, because PyTorch takes its time to import, and whoever interrupts that needs no traceback.
        from loadmaster.executor.memory.fit import command

        return command.main()
    except KeyboardInterrupt:
        return CancelledError.exit_status


if __name__ == "__main__":
    sys.exit(main())
