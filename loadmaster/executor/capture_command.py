"""``python -m loadmaster.executor.capture_command``: what ``loadmaster capture`` runs in a process of its own.

The command line's floor never imports torch, so it starts this module instead. Which command that is, the kind says.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Sequence

from loadmaster.models.kind import resolve
from loadmaster.models.kinds import all_kinds


def parser() -> argparse.ArgumentParser:
    """What all kinds have in common, for the help."""
    kinds = {kind.name: kind.question for kind in all_kinds().values() if kind.capture is not None}
    p = argparse.ArgumentParser(
        prog="loadmaster capture",
        description="Capture a PyTorch model as a problem document.",
        epilog="Each kind has options of its own: loadmaster capture MODULE:FACTORY KIND --help",
    )
    p.add_argument("factory", metavar="MODULE:FACTORY", help="returns (model, inputs) or (model, inputs, loss)")
    p.add_argument("kind", choices=kinds, help="; ".join(f"{name}: {question}" for name, question in kinds.items()))
    return p


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the capture of the kind that follows MODULE:FACTORY; returns its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    for factory, name in itertools.pairwise(given):
        kind = all_kinds().get(name)
        if ":" in factory and kind is not None and kind.capture is not None:
            command: Callable[[Sequence[str]], int] = resolve(kind.capture)
            return command(given)
    # No kind that can be captured: the help, or what is wrong.
    parser().parse_known_args(given)
    parser().error("give MODULE:FACTORY and KIND one after the other")


if __name__ == "__main__":
    sys.exit(main())
