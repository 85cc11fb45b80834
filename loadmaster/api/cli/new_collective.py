"""``new collective``: a problem from a named or a custom topology, with or without a sketch."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from loadmaster.api.cli.lazy import suggest
from loadmaster.api.columns import table
from loadmaster.errors import InputError
from loadmaster.models.collective.collectives import ROOTED, pieces
from loadmaster.models.collective.documents import write_problem
from loadmaster.models.collective.problem import Collective, CollectiveProblem, Sketch
from loadmaster.models.collective.taccl.sketch_files import published_sketch, read_sketch, sketch_names
from loadmaster.models.documents import Document, load_document
from loadmaster.models.topologies.networks import read_network
from loadmaster.models.topologies.presets import catalogue, preset
from loadmaster.models.topologies.profiles import load_profile, profile_names, published_profile
from loadmaster.models.topologies.topology import Topology
from loadmaster.models.units import parse_bytes

# Chunks of a custom collective are listed in the problem document itself.
_COLLECTIVES = tuple(name for name in get_args(Collective) if name != "custom")
_DEFAULT_BYTES = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> argparse._MutuallyExclusiveGroup:
    """Add the flags of a collective problem: topology, collective, sketch and sizes. Returns the group of sources."""
    source = parser.add_mutually_exclusive_group(required=True)
    names = [entry.name for entry in catalogue()]
    suggest(source.add_argument("--topology", metavar="NAME", help=f"a named one: {', '.join(names)}"), names)
    source.add_argument(
        "--topology-file", metavar="F", help="a published profile (a file, or a name of --list), or a topology as JSON"
    )
    parser.add_argument("--nodes", type=int, metavar="N", help="of a named topology or a profile (1)")
    parser.add_argument(
        "--collective", choices=_COLLECTIVES, required=True, metavar="NAME", help=", ".join(_COLLECTIVES)
    )
    parser.add_argument("--sketch-file", metavar="F", help="a communication sketch (a file, or a name of --list)")
    parser.add_argument(
        "--bytes", metavar="N[,N...]", help="of the largest buffer of a rank: 1KiB, 64MB; several make a table by size"
    )
    parser.add_argument("--chunks", metavar="K[,K...]", help="parts of each rank's piece to try (the planner's choice)")
    parser.add_argument("--root", type=int, metavar="R", help=f"of {', '.join(ROOTED)} (0)")
    parser.add_argument("--pair-bytes", metavar="F", help="of alltoallv: a JSON list, per rank what it sends to each")
    return source


def build(arguments: argparse.Namespace) -> Document:
    """The problem document: one collective on one topology, at one or more sizes. Raises InputError naming the flag or
    the file's field."""
    topology = _topology(arguments)
    sketch = _sketch(arguments, topology)
    pair_bytes = None if arguments.pair_bytes is None else _pair_bytes(arguments.pair_bytes)
    chunk_counts = tuple(_count(text) for text in _listing(arguments.chunks))
    problem = CollectiveProblem(
        name=f"{arguments.collective}-{topology.name.lower().replace(' ', '')}",
        topology=topology,
        collective=arguments.collective,
        sizes_bytes=(),
        chunk_counts=chunk_counts,
        root=0 if arguments.root is None and arguments.collective in ROOTED else arguments.root,
        pair_bytes=pair_bytes,
        sketch=sketch,
        title=f"{arguments.collective} on {topology.name}" + (f", sketch {sketch.name}" if sketch else ""),
    )
    return write_problem(problem) | {"sizes_bytes": _sizes(arguments, problem)}


def _topology(arguments: argparse.Namespace) -> Topology:
    nodes = 1 if arguments.nodes is None else arguments.nodes
    if arguments.topology is not None:
        return preset(arguments.topology, nodes)
    name = arguments.topology_file
    document = published_profile(name) if name in profile_names() else load_document(name)
    # Every profile says this, and no topology does.
    if "gpus_per_node" in document:
        return load_profile(document, nodes)
    if arguments.nodes is not None:
        remedy = "Leave it out: the file says which node each rank is of."
        raise InputError("--nodes", arguments.nodes, "means nothing to a topology of one's own", remedy)
    return read_network(document)


def _sketch(arguments: argparse.Namespace, topology: Topology) -> Sketch | None:
    name = arguments.sketch_file
    if name is None:
        return None
    if name in sketch_names():
        return read_sketch(published_sketch(name), topology, arguments.collective, name)
    return read_sketch(name, topology, arguments.collective)


def _sizes(arguments: argparse.Namespace, problem: CollectiveProblem) -> list[int]:
    """Sizes in bytes: as asked; else the sketch's; else a mebibyte, less what does not divide into chunks."""
    if problem.pair_bytes is not None:
        if arguments.bytes is not None:
            raise InputError("--bytes", arguments.bytes, "means nothing together with --pair-bytes", "Leave it out.")
        return [sum(map(sum, problem.pair_bytes))]
    if arguments.bytes is not None:
        return sorted({parse_bytes(text, "--bytes") for text in _listing(arguments.bytes)})
    if problem.sketch is not None and problem.sketch.size_bytes is not None:
        return [problem.sketch.size_bytes]
    drawn = problem.sketch.chunk_count if problem.sketch is not None else None
    asked = problem.chunk_counts or (drawn or 1,)
    cut = pieces(problem) * math.lcm(*asked)
    return [max(cut, _DEFAULT_BYTES - _DEFAULT_BYTES % cut)]


def _listing(text: str | None) -> list[str]:
    return [] if text is None else text.split(",")


def _count(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise InputError("--chunks", text, "is no number of parts", "Give whole numbers of at least 1, as in 1,2,4.")
    return int(text)


def _pair_bytes(path: str) -> tuple[tuple[int, ...], ...]:
    """Read rows of whole numbers from a file; the problem checks whether they fit the topology."""
    field = "--pair-bytes"
    try:
        rows = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise InputError(field, path, f"cannot be read: {error.strerror}", "Give the path of a JSON file.") from None
    except (ValueError, RecursionError) as error:
        raise InputError(field, path, f"is not JSON: {error}", "Give a JSON list of lists of bytes.") from None
    if not isinstance(rows, Sequence) or not all(_is_row(row) for row in rows):
        raise InputError(field, path, "is no table of bytes", "Give a JSON list of lists of whole numbers.")
    return tuple(tuple(row) for row in rows)


def _is_row(row: object) -> bool:
    return isinstance(row, list) and all(type(size) is int for size in row)


def listing() -> str:
    """List the named topologies, profiles and sketches."""
    rows = [[p.name, str(p.ranks_per_node), f"{p.nodes[0]} to {p.nodes[-1]}", p.title] for p in catalogue()]
    named = table(rows, ["topology", "ranks a node", "nodes", "what"])
    return f"{named}\n\nprofiles: {', '.join(profile_names())}\n\nsketches: {', '.join(sketch_names())}"
