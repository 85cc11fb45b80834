"""Training steps of known models from their shapes: weights as published, every gradient where it belongs."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest

from loadmaster.errors import InputError
from loadmaster.models.hardware import hardware
from loadmaster.models.partition.documents import check_problem
from loadmaster.models.partition.meshes import mesh
from loadmaster.models.partition.problem import PartitionProblem
from loadmaster.models.partition.tables.builder import Graph, roofline_us
from loadmaster.models.partition.tables.names import model, names

GIB = 2**30
# [Wang20] table 3.2: weights, gradients and history, in GiB. RNN-8-6K is printed as 28.5, between 18.6 and 32.1 for six
# and ten layers: 25.4 is meant, by every other column.
PUBLISHED = {
    "wresnet-50-4": 4.2, "wresnet-50-6": 9.6, "wresnet-50-8": 17.1, "wresnet-50-10": 26.7,
    "wresnet-101-4": 7.8, "wresnet-101-6": 17.1, "wresnet-101-8": 30.6, "wresnet-101-10": 47.7,
    "wresnet-152-4": 10.5, "wresnet-152-6": 23.4, "wresnet-152-8": 41.7, "wresnet-152-10": 65.1,
    "rnn-6-4k": 8.4, "rnn-8-4k": 11.4, "rnn-10-4k": 14.4,
    "rnn-6-6k": 18.6, "rnn-8-6k": 25.4, "rnn-10-6k": 32.1,
    "rnn-6-8k": 33.0, "rnn-8-8k": 45.3, "rnn-10-8k": 57.0,
}  # fmt: skip


def named(name: str, **options: int) -> PartitionProblem:
    return model(name, mesh("2x2"), hardware("p100"), **options)


def parameter_bytes(problem: PartitionProblem) -> int:
    return sum(t.size_bytes for t in problem.tensors if t.role == "parameter")


@pytest.mark.parametrize(("name", "gib"), PUBLISHED.items())
def test_weights_are_those_of_the_thesis(name: str, gib: float) -> None:
    # It gives the weights to a tenth of a GiB, times three. WResNet-50-10 is 0.26 below, the others 0.21 at most.
    assert 3 * parameter_bytes(named(name)) / GIB == pytest.approx(gib, abs=0.27)


def test_parameters_are_counted_as_published() -> None:
    assert parameter_bytes(named("llama3-8b", batch=1, sequence=16)) == 2 * 8_030_261_248
    # GPT-2 has 124,439,808, with 786,432 of positions and 0.1 M of shifts.
    assert parameter_bytes(named("gpt2", batch=1)) / 2 == pytest.approx(124_439_808 - 786_432, rel=1.5e-3)


@pytest.mark.parametrize("name", ["wresnet-50-4", "rnn-4-4k", "gpt2", "llama3.2-1b"])
def test_every_gradient_reaches_its_parameter(name: str) -> None:
    problem = named(name, batch=4)
    check_problem(problem)
    made = Counter(t for operator in problem.operators for t in operator.outputs)
    assert set(made.values()) == {1}
    updates = [o for o in problem.operators if not o.outputs]
    parameters = [n for n, tensor in enumerate(problem.tensors) if tensor.role == "parameter"]
    assert sorted(o.inputs[0] for o in updates) == parameters
    for operator in updates:
        shapes = {problem.tensors[t].shape for t in operator.inputs}
        assert len(shapes) == 1
        assert made[operator.inputs[1]] and problem.tensors[operator.inputs[1]].role == "gradient"
    read = {t for operator in problem.operators for t in operator.inputs}
    # What nobody reads: the loss, the last cell, and gradients of what came before the first step.
    unread = [problem.tensors[t].name for t in made if t not in read]
    assert all("loss" in name or "gradient" in name or "cell 1" in name for name in unread), unread


@pytest.mark.parametrize("name", ["wresnet-50-4", "rnn-4-4k", "gpt2"])
def test_what_is_tied_is_alike(name: str) -> None:
    problem = named(name, batch=4)
    shapes: dict[str, set[tuple[int, ...]]] = {}
    for tensor in problem.tensors:
        if tensor.tie is not None:
            shapes.setdefault(tensor.tie, set()).add(tensor.shape)
    assert shapes and all(len(of) == 1 for of in shapes.values())
    repeats = Counter(operator.tie for operator in problem.operators if operator.tie is not None)
    assert repeats.most_common(1)[0][1] > 2


def test_a_perceptron_by_hand() -> None:
    g = Graph(4, hardware("p100"))
    x = g.tensor("x", (8, 16), "input")
    a, b = g.parameter("a", (16, 32)), g.parameter("b", (32, 4))
    h = g.elementwise("relu", g.product("first", "nk,km->nm", x, a))
    out = g.product("second", "nk,km->nm", h, b)
    g.reached(out, g.tensor("given", (8, 4), "input"))
    g.backward()
    g.optimizer(1, 4)
    assert [operator.op for operator in g.operators] == [
        "first",
        "relu",
        "second",
        "second, input gradient",
        "second, weight gradient",
        "relu, gradient",
        "first, weight gradient",
        "a, update",
        "b, update",
    ]
    assert [g.shape(o.outputs[0]) for o in g.operators[3:7]] == [(8, 32), (32, 4), (8, 32), (16, 32)]
    problem = g.problem("perceptron", "", mesh("2"))
    check_problem(replace(problem, objective="bytes"))


def test_a_tensor_read_twice_gets_the_sum_of_its_gradients() -> None:
    g = Graph(4, hardware("p100"))
    a = g.parameter("a", (4, 4))
    out = g.sum_of("sum", g.elementwise("f", a), g.elementwise("g", a))
    g.reached(out, g.tensor("given", (4, 4), "input"))
    g.backward()
    g.optimizer(0, 4)
    ops = [operator.op for operator in g.operators]
    assert ops[-2:] == ["a, sum of gradients", "a, update"] and ops.count("a, sum of gradients") == 1


def test_times_are_a_roofline() -> None:
    of = hardware("p100")
    slow = roofline_us(of, 10.6e12 * of.compute_share, 0, 4)
    assert slow == pytest.approx(1e6 + of.launch_us)
    assert roofline_us(of, 0, 732_000, 4) == pytest.approx(1 / of.dram_share + of.launch_us)


def test_all_names_are_known() -> None:
    assert {"wresnet-152-10", "rnn-10-8k", "llama3-8b", "gpt2"} <= set(names())
    assert math.prod(named("rnn-4-4k", batch=2, sequence=3).tensors[0].shape) == 256 * 4 * 4096


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "wresnet-152-11"}, "is no known model.*Did you mean wresnet-152-10"),
        ({"name": "wresnet-50-4", "sequence": 3}, "--sequence.*means nothing to wresnet-50-4"),
    ],
)
def test_models_that_there_are_not(options: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        named(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("2y4", {}, "mesh.*is no mesh"),
        ("1x4", {}, "mesh.*is no mesh"),
        ("2x2x2x2x2", {}, "mesh.*1 to 4 axes"),
        ("2x4", {"gbps": "1,2,3"}, "gbps.*is for 3 axes, the mesh has 2"),
        ("2x4", {"gbps": "fast"}, "gbps.*is no number"),
        ("2x4", {"gbps": "0"}, "gbps.*is no rate"),
        ("2x4", {"latency_us": "nan"}, "latency_us.*is no rate or time"),
        ("3x4", {"topology": "hgx-h200"}, "mesh: is not of the 8 of hgx-h200.*3x4.*a mesh of 8"),
        ("2x4", {"topology": "nowhere"}, "topology.*nowhere.*Choose one of"),
    ],
)
def test_meshes_that_there_are_not(text: str, options: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        mesh(text, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"speeds": "1,2"}, "speeds.*is for 1 axes, the mesh has 2.*Give 1,1x1,1,1"),
        ({"weights": "1x2,1"}, "weights.*is for 2 GPUs on axis 1, the mesh has 3"),
        ({"weights": "1x2,1,0"}, "weights.*is not from 1 to 1000"),
        ({"weights": "1x2,1,1.5"}, "weights.*axis 1.*not a whole number"),
        ({"memory": "1x1,nan,1"}, "memory.*is not from 0.001 to 1000"),
        ({"speeds": "1000,0.001x1"}, "speeds.*too far apart.*Give weights"),
    ],
)
def test_unequal_gpus_that_there_are_not(options: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        mesh("2x3", **options)


def test_unequal_gpus_in_words() -> None:
    hosts, gpus = mesh("2x3", speeds="1x2,1,1", memory="80,40x1")
    assert (hosts.weights, hosts.speeds, hosts.memory_factors) == ((), (), (1.0, 0.5))
    assert (gpus.weights, gpus.speeds, gpus.memory_factors) == ((2, 1, 1), (2.0, 1.0, 1.0), ())
    # Given weights are kept, equal ones are none.
    assert [axis.weights for axis in mesh("2x2", speeds="2,1x1", weights="1x3,1")] == [(), (3, 1)]


@pytest.mark.parametrize(
    ("speeds", "weights"),
    [("2,1", (2, 1)), ("1.5,1", (3, 2)), ("1,0.97", ()), ("4,4", ()), ("3,2,1", (3, 2, 1)), ("1,0.73", (3, 2))],
)
def test_weights_balance_speeds(speeds: str, weights: tuple[int, ...]) -> None:
    (axis,) = mesh(str(speeds.count(",") + 1), speeds=speeds)
    assert axis.weights == weights
    share_us = max(share / speed for share, speed in zip(axis.shares, axis.speeds, strict=True)) / axis.units
    assert share_us * sum(axis.speeds) <= 1.05


def test_a_mesh_in_words() -> None:
    axes = mesh("2X4", gbps="45,350", latency_us="5")
    assert [(a.size, a.gbps, a.latency_us) for a in axes] == [(2, 45.0, 5.0), (4, 350.0, 5.0)]


def test_links_say_how_fast_axes_are() -> None:
    """Eight GPUs of a host share one NIC of an NDv2; those of an HGX have one each."""
    infiniband_gbps = 2**20 / 106e3
    assert mesh("2x8", topology="ndv2")[0].gbps == pytest.approx(infiniband_gbps / 8)
    hosts, gpus = mesh("2x8", topology="hgx-h200")
    assert (hosts.gbps, gpus.gbps) == (50.0, 390.0)
    assert [axis.gbps for axis in mesh("2x8", topology="hgx-h200", gbps="7,8")] == [7.0, 8.0]
    assert mesh("2", topology="hgx-h200")[0].gbps == 390.0
