"""Policies compared with each other: what the room of a kind gives to ``simulate``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Simulated:
    """Some policies, run on one problem under one limit: the lines that are printed, the same as figures, and a
    function that makes the page."""

    text: str
    document: Mapping[str, Any]
    html: Callable[[], str]
