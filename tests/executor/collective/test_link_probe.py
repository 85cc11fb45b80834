"""The profiler's mathematics: costs from made-up times, sharing from a made-up machine, and the topology they make."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.errors import InputError
from loadmaster.executor.collective.links import LinkCost, Sample, find_shared, fit
from loadmaster.executor.collective.probe import classes_of, document_of, main
from loadmaster.models.topologies.networks import read_network

SIZES = (1024, 16384, 262144, 4194304)


def times(latency_ns, message_ns, gbps, noise=0.0, seed=0):
    """What a link of those costs would take, by the formulas of section 5.3."""
    chance = np.random.default_rng(seed)
    samples = []
    for size in SIZES:
        for n in (1, 2, 8):
            apart = latency_ns + n * (message_ns + size / gbps)
            together = latency_ns + message_ns + n * size / gbps
            for merged, ns in ((False, apart), (True, together)):
                samples.append(Sample(size, n, merged, ns * 1e-9 * (1 + noise * chance.uniform(-1, 1))))
    return samples


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 10**6), st.floats(0.1, 1000))
def test_costs_are_found_again(latency_ns, message_ns, gbps):
    found = fit(times(latency_ns, message_ns, gbps))
    assert found.latency_ns == pytest.approx(latency_ns, rel=1e-3, abs=2)
    assert found.message_ns == pytest.approx(message_ns, rel=1e-3, abs=2)
    assert found.gbps == pytest.approx(gbps, rel=1e-3)
    assert found.error < 1e-6


@pytest.mark.parametrize("seed", range(5))
def test_costs_are_found_through_noise(seed):
    found = fit(times(1500, 700, 22.8, noise=0.1, seed=seed))
    assert found.latency_ns == pytest.approx(1500, rel=0.3)
    assert found.message_ns == pytest.approx(700, rel=0.3)
    assert found.gbps == pytest.approx(22.8, rel=0.1)
    assert 0.01 < found.error < 0.1


def test_a_cost_that_noise_would_make_negative_is_none():
    found = fit(times(0, 500, 10.0, noise=0.1, seed=1))
    assert found.latency_ns >= 0 and found.message_ns >= 0


@pytest.mark.parametrize(
    ("samples", "problem"),
    [
        (times(1, 1, 1)[:2], "too few"),
        ([Sample(8, 1, False, 0.0)] * 3, "is no time"),
        ([Sample(size, 1, False, 1.0 / size) for size in SIZES], "is no more for the larger half"),
    ],
)
def test_times_that_tell_nothing_are_refused(samples, problem):
    with pytest.raises(InputError, match=problem):
        fit(samples)


class Machine:
    """Two hosts of four ranks; some links hold the same things, and what is held by two takes twice as long."""

    node_of = (0, 0, 0, 0, 1, 1, 1, 1)

    def __init__(self, held):
        self.held = held
        self.pairs = [(a, b) for a in range(8) for b in range(8) if a != b]

    def slowdown(self, together):
        users = {}
        for pair in together:
            for resource in self.held(pair):
                users[resource] = users.get(resource, 0) + 1
        return max(users.values(), default=1)

    def shared(self):
        inside = [p for p in self.pairs if self.node_of[p[0]] == self.node_of[p[1]]]
        between = [p for p in self.pairs if p not in inside]
        return find_shared({"within nodes": inside, "between nodes": between}, self.node_of, self.slowdown)


def test_ports_and_shared_adapters_are_found():
    """A switch within each node; between nodes, two neighbours share an adapter, each way."""

    def held(pair):
        a, b = pair
        if Machine.node_of[a] == Machine.node_of[b]:
            return [("egress", a), ("ingress", b)]
        return [("nic out", a // 2), ("nic in", b // 2)]

    machine = Machine(held)
    shared = machine.shared()
    inside = {name: pairs for name, pairs in shared.resources.items() if name.startswith("within")}
    assert inside == {
        **{
            f"within nodes egress {r}": {p for p in machine.pairs if p[0] == r and p[1] // 4 == r // 4}
            for r in range(8)
        },
        **{
            f"within nodes ingress {r}": {p for p in machine.pairs if p[1] == r and p[0] // 4 == r // 4}
            for r in range(8)
        },
    }
    between = [p for p in machine.pairs if p[0] // 4 != p[1] // 4]
    for k in range(4):
        label = f"{2 * k},{2 * k + 1}"
        assert shared.resources[f"between nodes out of {label}"] == {p for p in between if p[0] // 2 == k}
        assert shared.resources[f"between nodes in of {label}"] == {p for p in between if p[1] // 2 == k}
    assert not any("wire" in name for name in shared.resources)


def test_half_duplex_wires_are_found_and_nothing_else():
    machine = Machine(lambda pair: [frozenset(pair)])
    shared = machine.shared()
    assert all(" wire " in name for name in shared.resources)
    assert {frozenset(pairs) for pairs in shared.resources.values()} == {
        frozenset({(a, b), (b, a)}) for a, b in machine.pairs
    }


def test_two_ranks_cannot_tell_what_is_shared():
    shared = find_shared({"within nodes": [(0, 1), (1, 0)]}, (0, 0), lambda pairs: 1.0)
    assert shared.resources == {}
    assert any("egress ports" in line for line in shared.unseen)
    assert any("too few ranks" in line for line in shared.unseen)


def test_pairs_fall_into_classes_by_bandwidth():
    alone = {
        (a, b): (1.0 if {a, b} in ({0, 1}, {2, 3}) else 2.0) * (1 + 0.01 * a)
        for a in range(4)
        for b in range(4)
        if a != b
    }
    assert classes_of(alone, (0, 0, 0, 0)) == {
        "within nodes 1": [(0, 1), (1, 0), (2, 3), (3, 2)],
        "within nodes 2": sorted(p for p in alone if p not in {(0, 1), (1, 0), (2, 3), (3, 2)}),
    }
    assert list(classes_of(alone, (0, 0, 1, 1))) == ["within nodes", "between nodes"]


def test_the_document_is_a_topology():
    machine = Machine(lambda pair: [("egress", pair[0]), ("ingress", pair[1])])
    classes = {
        "within nodes": [p for p in machine.pairs if p[0] // 4 == p[1] // 4],
        "between nodes": [p for p in machine.pairs if p[0] // 4 != p[1] // 4],
    }
    costs = {"within nodes": LinkCost(0, 700, 125.0, 0.0), "between nodes": LinkCost(1700, 0, 12.5, 0.0)}
    topology = read_network(document_of("mine", machine.node_of, classes, costs, machine.shared()))
    assert topology.node_of == machine.node_of and topology.name == "mine"
    assert topology.switches == ((0, 1, 2, 3), (4, 5, 6, 7))
    by_ends = {(link.source, link.target): link for link in topology.links}
    assert len(by_ends) == 56
    assert by_ends[0, 1].message_ns == 700 and by_ends[0, 1].gbps == 125.0 and by_ends[0, 1].switch == 0
    assert by_ends[0, 4].latency_ns == 1700 and by_ends[0, 4].switch is None
    assert set(by_ends[0, 1].resources) & set(by_ends[0, 2].resources)
    assert not set(by_ends[0, 1].resources) & set(by_ends[2, 3].resources)


def test_one_process_is_told_how_to_start(monkeypatch, capsys):
    monkeypatch.delenv("RANK", raising=False)
    assert main([]) == 2
    assert "torch.distributed.run" in capsys.readouterr().err
