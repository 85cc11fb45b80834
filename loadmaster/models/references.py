"""References to names in other rooms and on other floors: ``"module:name"``, imported when first needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def resolve(reference: str) -> Any:
    """Import what ``"module:name"`` names, or the module itself where there is no name."""
    module, _, name = reference.partition(":")
    found = import_module(module)
    return getattr(found, name) if name else found
