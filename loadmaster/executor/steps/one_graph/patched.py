"""Attributes of Dynamo and PyTorch that have other values while a step is traced and run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

Change = tuple[Any, str, Any]
"""Owner, name of its attribute, and the value that this attribute is to have; of a dictionary, its item."""


@contextlib.contextmanager
def patched(*changes: Change) -> Iterator[None]:
    """Give attributes other values inside the block.

    Every step enters here, and ``unittest.mock`` would take tens of microseconds.
    """
    before = [(at, name, at[name] if isinstance(at, dict) else getattr(at, name)) for at, name, _ in changes]
    try:
        _set(changes)
        yield
    finally:
        _set(before)


def _set(attributes: Iterable[Change]) -> None:
    for owner, name, value in attributes:
        if isinstance(owner, dict):
            owner[name] = value
        else:
            setattr(owner, name, value)
