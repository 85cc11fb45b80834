"""Sketch files: the published JSON and the dialect of Listing B.1, read into one :class:`Sketch`.

| field | means |
| --- | --- |
| nnodes | nodes that it was drawn for; must be the topology's |
| intranode_sketch.strategy | ``switch``: only the links through ``switches``; ``none``: all |
| intranode_sketch.switches | local ranks around each |
| intranode_sketch.switch_hyperedge_strategy | of each: ``uc-min``, ``uc-max`` or ``free`` |
| internode_sketch.strategy | ``relay`` |
| internode_sketch.internode_conn | sender -> receivers, or ``direct-map`` (i to i), or ``fully-connected`` |
| internode_sketch.gpus_to_sender_rev_map | published: sender -> the local ranks whose chunks it sends |
| internode_sketch.chunk_to_relay_map | B.1: [a, b]: chunks of local rank r leave through (r // a) a + b |
| internode_sketch.beta_split | B.1: sender -> n; where it is missing, what TACCL's solver takes instead |
| internode_sketch.enforce_ordering | published: an order of sends at relays; not followed, which a warning says |
| symmetry_offsets | [[offset, group], ...] |
| hyperparameters.input_chunkup | parts of each rank's piece |
| hyperparameters.input_size | B.1: bytes of a rank's input, a number or text such as ``1M`` (2^20) |

Source: [Shah23], appendix B.1, and its repository's examples.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal, TypeVar

from loadmaster.errors import InputError
from loadmaster.models.collective.problem import Collective, Sketch, Strategy, SwitchPolicy
from loadmaster.models.collective.sketch import lanes_per_nic
from loadmaster.models.documents import Document, load_document, parse
from loadmaster.models.fields import READING, Bounds
from loadmaster.models.shipped import Shipped
from loadmaster.models.topologies.topology import Topology

logger = logging.getLogger(__name__)

_SHIPPED = Shipped("loadmaster.models.collective.taccl", "sketches", "sketch_file", "sketch")
_SIZE = re.compile(r"(\d+)\s*([KMG]?)(?:i?B)?", re.I)
_SUFFIX_BYTES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}

T = TypeVar("T")
_Rank = Annotated[int, Bounds(ge=0)]


@dataclass(frozen=True, kw_only=True)
class _Intranode:
    strategy: Literal["switch", "none"]
    switches: list[list[_Rank]] | None = None
    switch_hyperedge_strategy: list[Strategy] | None = None


@dataclass(frozen=True, kw_only=True)
class _Internode:
    strategy: Literal["relay"] = "relay"
    internode_conn: Literal["direct-map", "fully-connected"] | dict[str, list[_Rank]]
    gpus_to_sender_rev_map: dict[str, list[_Rank]] | None = None
    chunk_to_relay_map: Annotated[list[_Rank], Bounds(min_length=2, max_length=2)] | None = None
    beta_split: dict[str, Annotated[float, Bounds(ge=1)]] | None = None
    enforce_ordering: bool = False


@dataclass(frozen=True, kw_only=True)
class _Hyperparameters:
    input_chunkup: Annotated[int, Bounds(ge=1)] | None = None
    input_size: Annotated[int, Bounds(ge=1)] | str | None = None


@dataclass(frozen=True, kw_only=True)
class _File:
    __pydantic_config__: ClassVar = READING

    nnodes: Annotated[int, Bounds(ge=1)] | None = None
    intranode_sketch: _Intranode
    internode_sketch: _Internode | None = None
    symmetry_offsets: list[Annotated[list[int], Bounds(min_length=2, max_length=2)]] = field(default_factory=list)
    hyperparameters: _Hyperparameters = _Hyperparameters()


def sketch_names() -> list[str]:
    """The shipped sketches (``sk1-dgx2-n2``, ...), ascending."""
    return _SHIPPED.names()


def published_sketch(name: str) -> Document:
    """A shipped sketch, as published. Raises InputError: no sketch has this name."""
    return _SHIPPED.read(name)


def read_sketch(
    source: Document | str | Path, topology: Topology, collective: Collective, name: str | None = None
) -> Sketch:
    """A sketch called ``name`` (None: as the file) from its file or its mapping. ``topology`` says what ``direct-map``
    connects, and how many links share a NIC; ``collective`` tells the largest buffer of a rank from its input
    (``input_size``). ``InputError`` names the field that is unknown, or at odds with the topology."""
    file = parse(_File, load_document(source))
    if file.nnodes is not None and file.nnodes != topology.node_count:
        remedy = f"Give a sketch for {topology.node_count}, or a topology of {file.nnodes} nodes."
        raise InputError("nnodes", file.nnodes, f"the topology has {topology.node_count} nodes", remedy)
    if name is None:
        name = "sketch" if isinstance(source, Mapping) else Path(source).stem
    internode, relays, split = _between_nodes(file, topology)
    if file.internode_sketch is not None and file.internode_sketch.enforce_ordering:
        # It steers a heuristic of TACCL's, which has no counterpart here, and is not a property of an algorithm.
        logger.warning(
            "internode_sketch.enforce_ordering of %s is not followed: sends are put in whichever order is fastest", name
        )
    return Sketch(
        name=name,
        switches=_switches(file.intranode_sketch),
        internode=internode,
        relays=relays,
        beta_split=split,
        symmetry=tuple((offset, group) for offset, group in file.symmetry_offsets),
        chunk_count=file.hyperparameters.input_chunkup,
        size_bytes=_largest_buffer(file.hyperparameters.input_size, topology, collective),
    )


def _switches(sketch: _Intranode) -> tuple[SwitchPolicy, ...]:
    field = "intranode_sketch"
    if sketch.strategy == "none":
        for name in ("switches", "switch_hyperedge_strategy"):
            if getattr(sketch, name) is not None:
                remedy = "Take it out, or give the strategy switch."
                raise InputError(f"{field}.{name}", getattr(sketch, name), "has no meaning with strategy none", remedy)
        return ()
    if not sketch.switches:
        raise InputError(f"{field}.switches", sketch.switches, "names no switch", "Give the local ranks around each.")
    strategies: list[Strategy] = sketch.switch_hyperedge_strategy or ["free"] * len(sketch.switches)
    if len(strategies) != len(sketch.switches):
        problem = f"has not one strategy for each of {len(sketch.switches)} switches"
        raise InputError(f"{field}.switch_hyperedge_strategy", strategies, problem, "Give one for each switch.")
    return tuple(SwitchPolicy(tuple(ranks), how) for ranks, how in zip(sketch.switches, strategies, strict=True))


def _between_nodes(
    file: _File, topology: Topology
) -> tuple[dict[int, tuple[int, ...]] | None, dict[int, int], dict[int, float]]:
    """Senders with their receivers, relays, and the beta split."""
    sketch = file.internode_sketch
    if sketch is None:
        if topology.node_count > 1:
            remedy = "Add it; fully-connected keeps every link between nodes."
            raise InputError("internode_sketch", None, f"is missing for {topology.node_count} nodes", remedy)
        return None, {}, {}
    count = max(len(ranks) for ranks in topology.ranks_of_node.values())
    field = "internode_sketch"
    internode: dict[int, tuple[int, ...]]
    if sketch.internode_conn == "direct-map":
        internode = {i: (i,) for i in range(count)}
    elif sketch.internode_conn == "fully-connected":
        internode = {i: tuple(range(count)) for i in range(count)}
    else:
        of_sender = _by_rank(f"{field}.internode_conn", sketch.internode_conn, count)
        internode = {sender: tuple(receivers) for sender, receivers in of_sender.items()}
    relays: dict[int, int] = {}
    if sketch.gpus_to_sender_rev_map is not None and sketch.chunk_to_relay_map is not None:
        remedy = "Give it or gpus_to_sender_rev_map."
        raise InputError(f"{field}.chunk_to_relay_map", sketch.chunk_to_relay_map, "is a second map of relays", remedy)
    if sketch.gpus_to_sender_rev_map is not None:
        name = f"{field}.gpus_to_sender_rev_map"
        for sender, ranks in _by_rank(name, sketch.gpus_to_sender_rev_map, count).items():
            for rank in ranks:
                if rank in relays:
                    raise InputError(f"{name}.{sender}", rank, f"has sender {relays[rank]} too", "Give it one sender.")
                relays[rank] = sender
    if sketch.chunk_to_relay_map is not None:
        relays = _relay_map(f"{field}.chunk_to_relay_map", sketch.chunk_to_relay_map, count)
    if sketch.beta_split is None:
        return internode, relays, lanes_per_nic(topology, internode)
    return internode, relays, _by_rank(f"{field}.beta_split", sketch.beta_split, count)


def _by_rank(field: str, of_rank: Mapping[str, T], count: int) -> dict[int, T]:
    """A mapping whose keys are local ranks, written as text."""
    found: dict[int, T] = {}
    for key, value in of_rank.items():
        if not key.isdecimal() or int(key) >= count:
            raise InputError(field, key, "is no rank of a node", f"Local ranks are 0 to {count - 1}.")
        found[int(key)] = value
    return found


def _relay_map(field: str, of_group: Sequence[int], count: int) -> dict[int, int]:
    """Read ``[group, place]``: the chunks of a local rank leave through the rank at that place of its group."""
    group, place = of_group
    if not 0 <= place < group or count % group:
        problem = f"is no place in groups that divide {count} ranks"
        raise InputError(field, [group, place], problem, "Give [group, place in the group], as [2, 1].")
    return {rank: rank // group * group + place for rank in range(count)}


def _largest_buffer(input_size: int | str | None, topology: Topology, collective: Collective) -> int | None:
    """Bytes of a rank's largest buffer where its input has that size."""
    if input_size is None:
        return None
    field = "hyperparameters.input_size"
    if collective in ("alltoallv", "custom"):
        problem = f"has no meaning for {collective}, whose chunks have sizes of their own"
        raise InputError(field, input_size, problem, "Leave it out.")
    size_bytes = input_size
    if isinstance(size_bytes, str):
        match = _SIZE.fullmatch(size_bytes.strip())
        if match is None or int(match[1]) == 0:
            raise InputError(field, input_size, "is no size", "Give bytes, or text such as 512, 32K or 1M.")
        size_bytes = int(match[1]) * _SUFFIX_BYTES[match[2].upper()]
    return size_bytes * (topology.rank_count if collective in ("allgather", "gather") else 1)
