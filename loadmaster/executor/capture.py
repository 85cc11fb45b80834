"""``python -m loadmaster.executor.capture``: what ``loadmaster capture`` runs in a process of its own.

The command line's floor never imports torch, so it starts this module instead.
"""

from __future__ import annotations

import sys

from loadmaster.executor.memory.command import main

if __name__ == "__main__":
    sys.exit(main())
