"""Whether what runs is still wanted: for work in a thread of its own, whose caller is not there to be interrupted.

What takes long asks now and then. Who starts it says so around it, through whatever function lies between.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

_asked: ContextVar[Callable[[], bool] | None] = ContextVar("cancelled", default=None)


@contextlib.contextmanager
def cancelled_by(asked: Callable[[], bool]) -> Iterator[None]:
    """What is done inside is cancelled once this is true."""
    token = _asked.set(asked)
    try:
        yield
    finally:
        _asked.reset(token)


def is_cancelled() -> bool:
    """Whether nobody waits for this any more."""
    asked = _asked.get()
    return asked is not None and asked()
