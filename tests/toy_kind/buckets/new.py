"""``new buckets``: equal gradients at equal intervals."""

from __future__ import annotations

import argparse

from buckets.documents import write_problem
from buckets.problem import BucketsProblem, Gradient
from loadmaster.errors import InputError
from loadmaster.models.documents import Document
from loadmaster.models.units import parse_bytes


def add_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """What a problem is made from."""
    parser.add_argument("--gradients", type=int, required=True, metavar="N", help="equal ones")
    parser.add_argument("--gradient-bytes", default="1MB", metavar="SIZE", help="of each (1MB)")
    parser.add_argument("--every-us", type=float, default=10.0, metavar="T", help="a gradient is made (10)")
    return parser


def build(arguments: argparse.Namespace) -> Document:
    """The problem document.

    Raises:
        InputError: naming the flag.
    """
    if arguments.gradients < 1:
        raise InputError("--gradients", arguments.gradients, "is less than 1", "Give at least 1.")
    size_bytes = parse_bytes(arguments.gradient_bytes, "--gradient-bytes")
    gradients = tuple(Gradient(arguments.every_us * (n + 1), size_bytes) for n in range(arguments.gradients))
    return write_problem(BucketsProblem(f"buckets-{arguments.gradients}", gradients, latency_us=20.0, gbps=100.0))
