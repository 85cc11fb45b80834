"""Models in a process of their own, with a limit: the crash of one ends nothing."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from typing import Any


def run_alone(run: Callable[..., None], arguments: Sequence[Any], limit_s: float, preload: Sequence[str]) -> str | None:
    """Call a function in a process of its own.

    Args:
        preload: modules that all such processes have in common, imported once.

    Returns:
        what ended it early, if anything did.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    process = context.Process(target=run, args=tuple(arguments))
    process.start()
    process.join(limit_s)
    if process.is_alive():
        process.kill()
        process.join()
        return f"took more than {limit_s:.0f} s"
    return None if process.exitcode == 0 else f"ended with exit status {process.exitcode}"
