"""Flags that several kinds make problems from: the shape of a transformer, and the device."""

from __future__ import annotations

import argparse

from loadmaster.api.cli.lazy import suggest
from loadmaster.models.hardware import catalogue

_SHAPE = (("layers", 24, ""), ("hidden", 1024, ""), ("sequence", 1024, "tokens "), ("batch", 32, "sequences "))


def add_transformer(source: argparse._MutuallyExclusiveGroup, parser: argparse.ArgumentParser) -> None:
    """Add ``--transformer`` to the sources, and the flags of its shape to the parser."""
    source.add_argument("--transformer", action="store_true", help="a decoder-only transformer, roofline times")
    for name, default, what in _SHAPE:
        words = f"transformer: {what}({default})" if what else f"transformer ({default})"
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=words)


def transformer_shape(arguments: argparse.Namespace) -> tuple[int, int, int, int]:
    """Layers, hidden size, sequence length and batch."""
    return arguments.layers, arguments.hidden, arguments.sequence, arguments.batch


def add_hardware(parser: argparse.ArgumentParser, what: str) -> None:
    """Add ``--hardware``; ``what`` says in its help what it is taken for."""
    device = parser.add_argument("--hardware", default="h200", metavar="NAME", help=f"{what} (h200)")
    suggest(device, (entry.name for entry in catalogue()))
