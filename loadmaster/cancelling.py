"""Cancellation of work in a thread of its own, whose caller is not there to be interrupted.

Long work calls :func:`is_cancelled` now and then. Whoever starts it wraps the call in :func:`cancelled_by`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

_asked: ContextVar[Callable[[], bool] | None] = ContextVar("cancelled", default=None)


@contextlib.contextmanager
def cancelled_by(asked: Callable[[], bool]) -> Iterator[None]:
    """Cancel the work done inside this context once ``asked()`` is true."""
    token = _asked.set(asked)
    try:
        yield
    finally:
        _asked.reset(token)


def is_cancelled() -> bool:
    """Return whether nobody waits any more for the work that runs here."""
    asked = _asked.get()
    return asked is not None and asked()
