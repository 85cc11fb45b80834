"""Commands that are loaded when they are chosen: to list them, with their help, imports none of them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import Any

_SUGGESTED = "_loadmaster_suggested"
Fill = Callable[[argparse.ArgumentParser], None]


class LazyParser(argparse.ArgumentParser):
    """The arguments of one command, or of one kind, added when it is chosen."""

    def __init__(self, *, fill: Fill, **options: Any) -> None:
        super().__init__(**options)
        self._fill: Fill | None = fill

    def load(self) -> None:
        """Add the arguments now, if they are not there yet."""
        fill, self._fill = self._fill, None
        if fill is not None:
            fill(self)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.load()
        return super().parse_known_args(args, namespace)


def suggest(action: argparse.Action, names: Iterable[str]) -> None:
    """Note the names that an argument knows, for completion on Tab; what else it takes, its command says."""
    setattr(action, _SUGGESTED, list(names))


def suggested(action: argparse.Action) -> list[str]:
    """Return the names that :func:`suggest` noted for an argument."""
    found: list[str] = getattr(action, _SUGGESTED, [])
    return found
