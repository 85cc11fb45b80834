"""``new placement``: a training step with AdamW, of a transformer by roofline or of a chain of layers."""

from __future__ import annotations

import argparse

from loadmaster.api.cli.new_shapes import add_hardware, add_transformer, transformer_shape
from loadmaster.models.documents import Document
from loadmaster.models.hardware import hardware
from loadmaster.models.placement import presets
from loadmaster.models.units import parse_bytes


def add_arguments(parser: argparse.ArgumentParser) -> argparse._MutuallyExclusiveGroup:
    """Add the flags of a placement problem: layers, sizes and host link. Returns the group of sources."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--chain", type=int, metavar="N", help="a chain of N equal layers")
    add_transformer(source, parser)
    parser.add_argument("--activation-bytes", default="100MiB", metavar="SIZE", help="chain: of each result (100MiB)")
    parser.add_argument("--parameter-bytes", default="100MiB", metavar="SIZE", help="chain: of each layer (100MiB)")
    parser.add_argument("--time-us", type=float, default=1000.0, metavar="T", help="chain: forward time of one (1000)")
    add_hardware(parser, "whose times and host link")
    parser.add_argument("--host-gbps", type=float, metavar="X", help="the host link has X GB/s each way")
    return source


def build(arguments: argparse.Namespace) -> Document:
    """The problem document of one training step with AdamW. Raises InputError naming the flag."""
    device = hardware(arguments.hardware, "--hardware")
    if arguments.chain is None:
        return presets.transformer(*transformer_shape(arguments), device, arguments.host_gbps)
    activation = parse_bytes(arguments.activation_bytes, "--activation-bytes")
    parameter = parse_bytes(arguments.parameter_bytes, "--parameter-bytes")
    return presets.chain(arguments.chain, activation, parameter, arguments.time_us, device, arguments.host_gbps)
