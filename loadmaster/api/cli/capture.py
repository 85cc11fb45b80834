"""``capture``: make problem documents from a model, by the command that its kind has on the executor's floor."""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Mapping, Sequence

from loadmaster.api.cli.executing import command_of, expect_torch
from loadmaster.models.kind import Kind
from loadmaster.models.kinds import all_kinds


def capture_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``capture`` that every kind takes; the kind's own are on the executor's floor."""
    kinds, default = _captured(), _captured_by_default()
    parser.description = "Capture a PyTorch model as a problem document."
    parser.epilog = "Each kind has options of its own: loadmaster capture MODULE:FACTORY KIND --help"
    parser.add_argument("factory", metavar="MODULE:FACTORY", help="returns (model, batch) or (model, batch, loss)")
    words = "; ".join(f"{name}: {kind.question}" for name, kind in kinds.items())
    usual = f" (default: {default.name})" if default is not None else ""
    parser.add_argument("kind", metavar="KIND", nargs="?", choices=list(kinds), help=words + usual)
    parser.add_argument("-o", "--output", metavar="PROBLEM.json", help="- or none: standard output")


def capture(given: Sequence[str]) -> int:
    """Run the executor's capture of a kind in a process of its own (this floor has no torch); returns its exit status.
    Raises MissingExtraError if torch is not installed."""
    parser = argparse.ArgumentParser(prog="loadmaster capture")
    capture_arguments(parser)
    if not given or given[0] in ("-h", "--help"):
        parser.parse_args(given)
    kind, own = _split(parser, given)
    assert kind.capture is not None
    expect_torch()
    return subprocess.run(command_of(kind.capture, own), check=False).returncode


def _captured() -> Mapping[str, Kind]:
    """The kinds whose problems can be captured."""
    return {name: kind for name, kind in all_kinds().items() if kind.capture is not None}


def _captured_by_default() -> Kind | None:
    """The kind where none is named: the only one, else the first that says so (those of this package come first)."""
    kinds = list(_captured().values())
    return kinds[0] if len(kinds) == 1 else next((kind for kind in kinds if kind.captured_by_default), None)


def _split(parser: argparse.ArgumentParser, given: Sequence[str]) -> tuple[Kind, list[str]]:
    """Split arguments into the kind and those of its own command: the same without the kind's name. The kind follows
    MODULE:FACTORY. Only the kind's own options say which word with a colon that is (``--device cuda:0`` is none), so
    every word right after one is looked at."""
    kinds = _captured()
    after = [n for n in range(1, len(given)) if ":" in given[n - 1] and not given[n - 1].startswith("-")]
    for place in after:
        if given[place] in kinds:
            return kinds[given[place]], [*given[:place], *given[place + 1 :]]
    if not any(":" in word for word in given):
        parser.error("MODULE:FACTORY is missing: name the function that makes your model, as in train:make")
    for place in after:
        if not given[place].startswith("-") and ":" not in given[place]:
            parser.error(f"KIND: {given[place]!r} cannot be captured (choose from {', '.join(map(repr, kinds))})")
    default = _captured_by_default()
    if default is None:
        parser.error(f"KIND follows MODULE:FACTORY: one of {', '.join(kinds)}")
    return default, list(given)
