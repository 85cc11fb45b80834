"""The command line's flags for a mesh."""

from __future__ import annotations

import argparse

from loadmaster.models.partition.meshes import mesh
from loadmaster.models.partition.problem import Axis

_FLAGS = (
    ("gbps", "X,Y", "GB/s that a GPU receives along each axis, or along all (350)"),
    ("latency_us", "X,Y", "of a collective along each axis, or along all (20)"),
    ("topology", "NAME", "whose links say how fast the axes are: hgx-h200, ndv2, ..."),
    ("speeds", "1x2,1", "how fast the GPUs of each axis compute: one number for all of them, or one for each"),
    ("weights", "1x2,1", "their shares of what is split, in the same way (small numbers that balance speeds)"),
    ("memory", "1x2,1", "their memory beside each other, in the same way: the budget is that of the largest"),
)


def add_mesh(parser: argparse.ArgumentParser) -> None:
    """Add ``--mesh`` and the flags that say more of it."""
    parser.add_argument("--mesh", required=True, metavar="2x4", help="GPUs along each axis, the slowest links first")
    for name, example, words in _FLAGS:
        parser.add_argument(_flag(name), metavar=example, help=words)


def given_mesh(arguments: argparse.Namespace) -> tuple[Axis, ...]:
    """The axes.

    Raises:
        InputError: naming the flag.
    """
    return mesh(arguments.mesh, **{name: getattr(arguments, name) for name, _, _ in _FLAGS}, called=_flag)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
