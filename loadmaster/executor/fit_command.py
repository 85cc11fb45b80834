"""``python -m loadmaster.executor.fit_command``: what ``loadmaster fit`` runs in a process of its own, and plans for.

The command line's floor never imports torch, and this floor never plans: problems go out over a pipe, plans come back.
"""

from __future__ import annotations

import sys

from loadmaster.executor.memory.fit.command import main

if __name__ == "__main__":
    sys.exit(main())
