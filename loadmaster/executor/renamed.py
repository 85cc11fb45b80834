"""Names that have changed: the old ones work for one release, with a warning."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def warn_renamed(old: str, new: str, stacklevel: int = 3) -> None:
    """Say that a name will go; by default at the line that calls the caller."""
    warnings.warn(f"{old} is called {new} now; the old name goes in the next release.", DeprecationWarning, stacklevel)


def renamed_keywords(**new_names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function take keywords under their old names, too; given as ``old="new"``."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for old, new in new_names.items():
                if old in kwargs and new not in kwargs:
                    warn_renamed(f"{function.__name__}({old}=...)", f"{function.__name__}({new}=...)")
                    kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call

    return decorate
