"""Attributes of Dynamo's and of PyTorch's that are others while a step is traced and run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

Change = tuple[Any, str, Any]
"""An owner, the name of an attribute, and the value that it is to have."""


@contextlib.contextmanager
def patched(*changes: Change) -> Iterator[None]:
    """Inside, attributes are what they are given to be.

    Every step enters here. ``unittest.mock`` takes tens of microseconds.
    """
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    try:
        _set(changes)
        yield
    finally:
        _set(before)


def _set(attributes: Iterable[Change]) -> None:
    for owner, name, value in attributes:
        setattr(owner, name, value)
