"""``python -m loadmaster.executor.capture_command``: what ``loadmaster capture`` runs in a process of its own.

The command line's floor never imports torch, so it starts this module instead. Which command that is, the kind says.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence

from loadmaster.errors import CancelledError
from loadmaster.models.kind import Kind, resolve
from loadmaster.models.kinds import all_kinds


def kinds_captured() -> Mapping[str, Kind]:
    """The kinds whose problems can be captured."""
    return {name: kind for name, kind in all_kinds().items() if kind.capture is not None}


def default_kind() -> Kind | None:
    """The kind where none is named: the only one, else the first that says so (those of this package come first)."""
    kinds = list(kinds_captured().values())
    return kinds[0] if len(kinds) == 1 else next((kind for kind in kinds if kind.captured_by_default), None)


def parser() -> argparse.ArgumentParser:
    """Argument parser of what all kinds have in common, for the help."""
    kinds, default = kinds_captured(), default_kind()
    p = argparse.ArgumentParser(
        prog="loadmaster capture",
        description="Capture a PyTorch model as a problem document.",
        epilog="Each kind has options of its own: loadmaster capture MODULE:FACTORY KIND --help",
    )
    p.add_argument("factory", metavar="MODULE:FACTORY", help="returns (model, batch) or (model, batch, loss)")
    words = "; ".join(f"{name}: {kind.question}" for name, kind in kinds.items())
    usual = f" (default: {default.name})" if default is not None else ""
    p.add_argument("kind", metavar="KIND", nargs="?", choices=list(kinds), help=words + usual)
    return p


def split(given: Sequence[str]) -> tuple[Kind, list[str]]:
    """Split arguments into the kind and those of its own command: the same without the kind's name.

    The kind follows MODULE:FACTORY. Which of the words with a colon that is (``--device cuda:0``), only the kind's own
    options say; so every word right after one is looked at.
    """
    kinds = kinds_captured()
    after = [n for n in range(1, len(given)) if ":" in given[n - 1] and not given[n - 1].startswith("-")]
    for place in after:
        if given[place] in kinds:
            return kinds[given[place]], [*given[:place], *given[place + 1 :]]
    refused = parser()
    if not any(":" in word for word in given):
        refused.error("MODULE:FACTORY is missing: name the function that makes your model, as in train:make")
    for place in after:
        if not given[place].startswith("-") and ":" not in given[place]:
            refused.error(f"KIND: {given[place]!r} cannot be captured (choose from {', '.join(map(repr, kinds))})")
    default = default_kind()
    if default is None:
        refused.error(f"KIND follows MODULE:FACTORY: one of {', '.join(kinds)}")
    return default, list(given)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the capture of a kind; returns its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        parser().parse_args(given)
    kind, own = split(given)
    assert kind.capture is not None
    command: Callable[[Sequence[str]], int] = resolve(kind.capture)
    return command(own)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # while PyTorch is imported, mostly; who started this process says so
        sys.exit(CancelledError.exit_status)
