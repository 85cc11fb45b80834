"""All models of the zoo. A library is imported when one of its models is asked for."""

from __future__ import annotations

import importlib

from benchmarks.zoo.entries import Entry

LIBRARIES = ("transformers", "timm", "torchvision", "diffusers")


def of_library(library: str) -> tuple[Entry, ...]:
    """List the entries of one library.

    Raises:
        ImportError: it is not installed.
    """
    return importlib.import_module(f"benchmarks.zoo.{library}_models").MODELS  # type: ignore[no-any-return]


def entry(name: str) -> Entry:
    """Find an entry by ``LIBRARY/MODEL``."""
    library, _, model = name.partition("/")
    found = {e.name: e for e in of_library(library)} if library in LIBRARIES else {}
    if model not in found:
        raise ValueError(f"{name} is no model of the zoo. Give LIBRARY/MODEL: {', '.join(found) or LIBRARIES}.")
    return found[model]
