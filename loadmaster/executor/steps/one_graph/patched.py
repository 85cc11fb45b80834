"""Attributes of Dynamo's and of PyTorch's that are others while a step is traced."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def patched(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """Inside, attributes are what they are given to be: owner, name and value of each.

    Every step enters here. ``unittest.mock`` takes tens of microseconds.
    """
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    _set(changes)
    try:
        yield
    finally:
        _set(before)


def _set(attributes: Any) -> None:
    for owner, name, value in attributes:
        setattr(owner, name, value)
