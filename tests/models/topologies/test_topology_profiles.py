"""Published profiles load as they are, and cost to the nanosecond what they say."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from loadmaster.errors import InputError
from loadmaster.models.topologies.profiles import load_profile, profile_names, published_profile
from loadmaster.models.topologies.topology import Topology

# File -> bytes of its chunk, ns of its unit; by hand.
KNOWN = {
    "topo-dgx2-1KB": (1024, 10),
    "topo-dgx2-1MB": (1_048_576, 1000),
    "topo-ndv2-1KB": (1024, 10),
    "topo-ndv2-1MB": (1_048_576, 1000),
    "topo-ndv2-32KB": (32_768, 100),
}


def costs(topology: Topology, chunk_bytes: int) -> dict[bool, set[int]]:
    """Between nodes or not -> what a chunk costs there."""
    found: dict[bool, set[int]] = {}
    for link in topology.links:
        found.setdefault(topology.crosses(link), set()).add(link.transfer_ns(chunk_bytes))
    return found


def test_all_five_are_there() -> None:
    assert profile_names() == sorted(KNOWN)


@pytest.mark.parametrize("name", sorted(KNOWN))
@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_a_chunk_of_the_profiles_size_costs_alpha_and_beta(name: str, nodes: int) -> None:
    document = published_profile(name)
    chunk_bytes, unit_ns = KNOWN[name]

    def ns(alpha: float, beta: float) -> int:
        return math.ceil((Fraction(str(alpha)) + Fraction(str(beta))) * unit_ns)

    topology = load_profile(document, nodes)
    assert topology.rank_count == nodes * document["gpus_per_node"]
    found = costs(topology, chunk_bytes)
    assert found[False] == {ns(document["alpha"], beta) for beta in document["node_betas_list"]}
    if nodes > 1:
        assert found[True] == {ns(document["remote_alpha"], document["remote_beta"])}
    assert {k.message_ns for k in topology.links if not topology.crosses(k)} == {300}
    assert {k.message_ns for k in topology.links if topology.crosses(k)} <= {2600}
    assert {k.latency_ns for k in topology.links} == {0}


def test_two_betas_go_to_the_pairs_of_the_published_node() -> None:
    """The matrix in the TACCL repository's comment: 23 us with two NVLinks, 46 us with one."""
    invbws = [
        [0, 23, 46, 46, 23, 0, 0, 0],
        [23, 0, 46, 23, 0, 46, 0, 0],
        [46, 46, 0, 23, 0, 0, 23, 0],
        [46, 23, 23, 0, 0, 0, 0, 46],
        [23, 0, 0, 0, 0, 23, 46, 46],
        [0, 46, 0, 0, 23, 0, 46, 23],
        [0, 0, 23, 0, 46, 46, 0, 23],
        [0, 0, 0, 46, 46, 23, 23, 0],
    ]
    topology = load_profile(published_profile("topo-ndv2-1MB"), 1)
    found = {(k.target, k.source): (k.occupancy_ns(2**20) - 300) // 1000 for k in topology.links}
    assert found == {(t, s): us for t, row in enumerate(invbws) for s, us in enumerate(row) if us}


def test_nics_serve_the_gpus_of_the_profile() -> None:
    dgx2 = load_profile(published_profile("topo-dgx2-1KB"), 2)
    names = {(k.source, k.target): {dgx2.resources[r] for r in k.resources} for k in dgx2.links if dgx2.crosses(k)}
    assert names[0, 16] == names[1, 17] == {"nic 0.0 out", "nic 1.0 in"}
    assert names[2, 31] == {"nic 0.1 out", "nic 1.7 in"}


def test_a_file_reads_as_its_mapping(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(published_profile("topo-ndv2-32KB")))
    assert load_profile(path, 2) == load_profile(published_profile("topo-ndv2-32KB"), 2)


MATRIX: dict[str, Any] = {
    "name": "three in a row",
    "gpus_per_node": 3,
    "alpha": 1,
    "links": [[0, 1, 0], [1, 0, 1], [0, 1, 0]],
    "betas": [[0, 5, 0], [4, 0, 4], [0, 6, 0]],
    "chunk_bytes": 1000,
    "unit_ns": 100,
}


def test_matrices_are_by_target_and_source() -> None:
    topology = load_profile(MATRIX, 1)
    assert {(k.source, k.target): k.occupancy_ns(1000) for k in topology.links} == {
        (1, 0): 600,
        (0, 1): 500,
        (2, 1): 500,
        (1, 2): 700,
    }


NDV2 = {**published_profile("topo-ndv2-1MB")}


@pytest.mark.parametrize(
    ("document", "nodes", "field"),
    [
        (NDV2 | {"alhpa": 3}, 2, "alhpa"),
        ({k: v for k, v in NDV2.items() if k != "alpha"}, 2, "alpha"),
        ({k: v for k, v in NDV2.items() if k != "remote_beta"}, 2, "remote_beta"),
        (NDV2 | {"node_betas_list": [23, 0]}, 1, "node_betas_list[1]"),
        (NDV2 | {"node_betas_list": [-8]}, 1, "node_betas_list[0]"),
        (NDV2 | {"node_betas_list": [8, 9, 10]}, 1, "node_betas_list"),
        (NDV2 | {"alpha": -1}, 1, "alpha"),
        (NDV2 | {"remote_beta": -1}, 2, "remote_beta"),
        (NDV2 | {"nics_per_node": 3}, 2, "nics_per_node"),
        (NDV2 | {"name": "mine"}, 1, "chunk_bytes"),
        (NDV2 | {"name": "mine_1MB"}, 1, "unit_ns"),
        (NDV2, 17, "nodes"),
        (NDV2, 0, "nodes"),
        (MATRIX | {"betas": [[0, 5, 0], [4, 0, 0], [0, 6, 0]]}, 1, "betas[1][2]"),
        (MATRIX | {"links": [[0, 2, 0], [1, 0, 1], [0, 1, 0]]}, 1, "links[0][1]"),
        (MATRIX | {"links": [[0, 1], [1, 0]]}, 1, "links"),
        ({k: v for k, v in MATRIX.items() if k != "betas"}, 1, "betas"),
    ],
)
def test_what_is_no_profile_is_refused(document: dict[str, Any], nodes: int, field: str) -> None:
    with pytest.raises(InputError) as refused:
        load_profile(document, nodes)
    assert refused.value.field == field
    assert refused.value.remedy


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(InputError, match="topo-dgx2-1KB"):
        published_profile("topo-dgx3")
