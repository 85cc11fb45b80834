"""Libraries that some tests need: a test without its library is skipped, one whose library is broken fails.

A torchvision that is for another PyTorch does not import, and transformers, timm and diffusers with it. Taken for
missing, it would hide their tests from everybody.
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

import pytest


def imported(module: str, *, needs: str) -> ModuleType:
    """Import a module of a library's, or of ours that needs the library. Skip the test if it is not installed."""
    if importlib.util.find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed (the zoo extra)")
    return importlib.import_module(module)
