"""Both dialects of sketch files: all published files, Listing B.1, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadmaster.errors import InputError
from loadmaster.models.collective.problem import Collective, SwitchPolicy
from loadmaster.models.collective.taccl.sketch_files import published_sketch, read_sketch, sketch_names
from loadmaster.models.topologies.presets import preset
from loadmaster.models.topologies.profiles import load_profile, published_profile
from loadmaster.models.topologies.topology import Topology

LISTING_B1: dict[str, Any] = {
    "intranode_sketch": {
        "strategy": "switch",
        "switches": [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]],
        "switch_hyperedge_strategy": ["uc-min"],
    },
    "internode_sketch": {
        "strategy": "relay",
        "internode_conn": {str(i): [i - 1] for i in range(1, 16, 2)},
        "beta_split": {str(i): 1 for i in range(1, 16, 2)},
        "chunk_to_relay_map": [2, 1],
    },
    "symmetry_offsets": [[2, 16], [16, 32]],
    "hyperparameters": {"input_chunkup": 2, "input_size": "1M"},
}


def topology_of(name: str) -> Topology:
    """The profile that a published sketch is for."""
    return load_profile(published_profile(f"topo-{name.split('-')[1]}-1MB"), published_sketch(name)["nnodes"])


def test_all_published_files_are_there() -> None:
    assert len(sketch_names()) == 11


@pytest.mark.parametrize("name", sketch_names())
def test_published_files_read_field_by_field(name: str) -> None:
    document, topology = published_sketch(name), topology_of(name)
    sketch = read_sketch(document, topology, "allgather", name)
    assert sketch.name == name
    assert sketch.chunk_count == document["hyperparameters"]["input_chunkup"]
    assert sketch.size_bytes is None
    assert [list(pair) for pair in sketch.symmetry] == document["symmetry_offsets"]
    intranode = document["intranode_sketch"]
    assert [list(s.ranks) for s in sketch.switches] == intranode.get("switches", [])
    assert [s.strategy for s in sketch.switches] == intranode.get("switch_hyperedge_strategy", [])
    internode = document.get("internode_sketch")
    if internode is None:
        assert sketch.internode is None
    elif isinstance(internode["internode_conn"], dict):
        assert sketch.internode is not None
        assert {str(s): list(r) for s, r in sketch.internode.items()} == internode["internode_conn"]
    relays = {rank: int(s) for s, rs in (internode or {}).get("gpus_to_sender_rev_map", {}).items() for rank in rs}
    assert sketch.relays == relays


def test_what_the_names_of_connections_mean() -> None:
    ndv2 = topology_of("sk2-ndv2-n2")
    full = read_sketch(published_sketch("sk2-ndv2-n2"), ndv2, "alltoall")
    assert full.internode == {i: tuple(range(8)) for i in range(8)}
    direct = read_sketch(published_sketch("sk3-ndv2-n2"), ndv2, "alltoall")
    assert direct.internode == {i: (i,) for i in range(8)}


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("sk1-dgx2-n2", {}),
        ("sk2-dgx2-n2", dict.fromkeys(range(16), 2.0)),
        ("sk1-ndv2-n2", {}),
        ("sk1-ndv2-n4", {}),
        ("sk2-ndv2-n2", dict.fromkeys(range(8), 64.0)),
        ("sk2-ndv2-n4", dict.fromkeys(range(8), 64.0)),
        ("sk3-ndv2-n2", dict.fromkeys(range(8), 8.0)),
    ],
)
def test_the_published_solvers_beta_split_is_links_between_nodes_per_nic(name: str, split: dict[int, float]) -> None:
    assert read_sketch(published_sketch(name), topology_of(name), "allgather").beta_split == split


def test_listing_b1_is_the_published_dgx2_sk_1() -> None:
    topology = topology_of("sk1-dgx2-n2")
    published = read_sketch(published_sketch("sk1-dgx2-n2"), topology, "allgather")
    listing = read_sketch(LISTING_B1, topology, "allgather")
    assert (listing.switches, listing.internode) == (published.switches, published.internode)
    assert (listing.relays, listing.symmetry) == (published.relays, published.symmetry)
    assert listing.beta_split == dict.fromkeys(range(1, 16, 2), 1.0)
    assert listing.switches == (SwitchPolicy(tuple(range(16)), "uc-min"),)


@pytest.mark.parametrize(
    ("size", "collective", "size_bytes"),
    [
        ("1M", "allgather", 32 << 20),
        ("1M", "alltoall", 1 << 20),
        ("32KB", "reduce_scatter", 32 << 10),
        ("2GiB", "gather", 64 << 30),
        (4096, "broadcast", 4096),
        ("512", "allreduce", 512),
    ],
)
def test_the_input_gives_the_largest_buffer(size: int | str, collective: Collective, size_bytes: int) -> None:
    document = LISTING_B1 | {"hyperparameters": {"input_size": size}}
    assert read_sketch(document, topology_of("sk1-dgx2-n2"), collective).size_bytes == size_bytes


def test_a_file_is_named_by_its_stem(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(LISTING_B1))
    assert read_sketch(path, topology_of("sk1-dgx2-n2"), "allgather").name == "mine"


def changed(section: str, **fields: Any) -> dict[str, Any]:
    part = {k: v for k, v in (LISTING_B1[section] | fields).items() if v is not ...}
    return LISTING_B1 | {section: part}


@pytest.mark.parametrize(
    ("document", "field"),
    [
        (LISTING_B1 | {"symmetry_offset": []}, "symmetry_offset"),
        (LISTING_B1 | {"nnodes": 3}, "nnodes"),
        (LISTING_B1 | {"symmetry_offsets": [[2]]}, "symmetry_offsets[0]"),
        ({k: v for k, v in LISTING_B1.items() if k != "internode_sketch"}, "internode_sketch"),
        ({k: v for k, v in LISTING_B1.items() if k != "intranode_sketch"}, "intranode_sketch"),
        (changed("intranode_sketch", strategy="maxmin"), "intranode_sketch.strategy"),
        (changed("intranode_sketch", strategy="none"), "intranode_sketch.switches"),
        (changed("intranode_sketch", switches=...), "intranode_sketch.switches"),
        (
            changed("intranode_sketch", switch_hyperedge_strategy=["uc-min", "free"]),
            "intranode_sketch.switch_hyperedge_strategy",
        ),
        (
            changed("intranode_sketch", switch_hyperedge_strategy=["most"]),
            "intranode_sketch.switch_hyperedge_strategy[0]",
        ),
        (changed("internode_sketch", strategy="ring"), "internode_sketch.strategy"),
        (changed("internode_sketch", internode_conn={"16": [0]}), "internode_sketch.internode_conn"),
        (changed("internode_sketch", internode_conn={"one": [0]}), "internode_sketch.internode_conn"),
        (changed("internode_sketch", chunk_to_relay_map=[2, 2]), "internode_sketch.chunk_to_relay_map"),
        (changed("internode_sketch", chunk_to_relay_map=[3, 1]), "internode_sketch.chunk_to_relay_map"),
        (
            changed("internode_sketch", gpus_to_sender_rev_map={"1": [0, 1]}),
            "internode_sketch.chunk_to_relay_map",
        ),
        (
            changed("internode_sketch", chunk_to_relay_map=..., gpus_to_sender_rev_map={"1": [0, 1], "3": [1]}),
            "internode_sketch.gpus_to_sender_rev_map.3",
        ),
        (changed("internode_sketch", beta_split={"1": 0.5}), "internode_sketch.beta_split.1"),
        (changed("internode_sketch", relay_map=[2, 1]), "internode_sketch.relay_map"),
        (changed("hyperparameters", input_chunkup=0), "hyperparameters.input_chunkup"),
        (changed("hyperparameters", input_size="1T"), "hyperparameters.input_size"),
        (changed("hyperparameters", input_size="0"), "hyperparameters.input_size"),
        (changed("hyperparameters", chunks=2), "hyperparameters.chunks"),
    ],
)
def test_bad_sketches_are_refused(document: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as refused:
        read_sketch(document, topology_of("sk1-dgx2-n2"), "allgather")
    # A union of types adds the type to pydantic's path.
    assert refused.value.field.startswith(field)
    assert refused.value.remedy


def test_an_order_that_is_not_followed_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    topology = topology_of("sk1-dgx2-n2")
    for enforced in (True, False):
        read = read_sketch(changed("internode_sketch", enforce_ordering=enforced), topology, "allgather", "mine")
        assert read == read_sketch(LISTING_B1, topology, "allgather", "mine")
    (record,) = caplog.records
    assert "enforce_ordering of mine is not followed" in record.getMessage()


def test_an_input_size_says_nothing_of_uneven_chunks() -> None:
    with pytest.raises(InputError, match="input_size"):
        read_sketch(LISTING_B1, preset("dgx2", 2), "alltoallv")


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(InputError, match="sk1-ndv2-n4"):
        published_sketch("sk9")
