"""Collectives of a compiled pass: what is begun early, what is waited for late, and that their order stays."""

from __future__ import annotations

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from loadmaster.executor.partition import collectives
from loadmaster.executor.partition.overlap import overlapped

LAYERS, WIDTH = 4, 8
LARGEST = 1 << 30
# Of one gathered weight.
WEIGHT_BYTES = WIDTH * WIDTH * 4


def a_pass() -> fx.GraphModule:
    """Each layer gathers half a weight, multiplies with it, and adds up the gradient of another one over two ranks."""

    def run(x: Tensor, *halves: Tensor) -> list[Tensor]:
        gradients = []
        for half in halves:
            weight = collectives.all_gather(half.view(-1), half.numel(), 2, "group").view(WIDTH, WIDTH)
            x = torch.tanh(x @ weight)
            gradient = collectives.reduce_scatter((x.t() @ x).view(-1), 2, "group")
            gradients.append(gradient.view(WIDTH // 2, WIDTH))
        return [x, *gradients]

    mode = FakeTensorMode()
    with mode:
        given = [torch.empty(WIDTH, WIDTH), *(torch.empty(WIDTH // 2, WIDTH) for _ in range(LAYERS))]
        return make_fx(run)(*given)


def places(module: fx.GraphModule, at_once_bytes: int) -> tuple[list[str], dict[str, list[tuple[int, int]]]]:
    """The names of the collectives in the order in which they begin, and, by name, (begun, waited for) of each, counted
    in products that were computed before."""
    graph = overlapped(module, at_once_bytes).graph
    products, begun, order = 0, {}, []
    found: dict[str, list[tuple[int, int]]] = {"begin_all_gather": [], "begin_reduce_scatter": []}
    for node in graph.nodes:
        if node.target is torch.ops.aten.mm.default:
            products += 1
        elif node.target in collectives.BEGUN.values():
            begun[node] = products
            order.append(node.target.name().removeprefix("loadmaster::"))
        elif node.target is collectives.wait_for:
            name = node.args[0].target.name().removeprefix("loadmaster::")
            found[name].append((begun[node.args[0]], products))
    return order, found


def test_with_room_everything_given_is_gathered_at_once_and_gradients_are_waited_for_at_the_end() -> None:
    _, found = places(a_pass(), LARGEST)
    # Two products a layer: one with the weight, one for the gradient.
    assert found["begin_all_gather"] == [(0, 2 * layer) for layer in range(LAYERS)]
    assert found["begin_reduce_scatter"] == [(2 * layer + 2, 2 * LAYERS) for layer in range(LAYERS)]


def test_without_room_one_is_ahead() -> None:
    _, found = places(a_pass(), 0)
    # Each begins when the last but one is there, before that layer's products.
    assert [waited - begun for begun, waited in found["begin_all_gather"]] == [0, 2, 4, 4]
    assert [waited - begun for begun, waited in found["begin_reduce_scatter"]] == [2, 2, 2, 0]


def test_as_many_bytes_are_on_their_way_as_there_is_room_for() -> None:
    _, found = places(a_pass(), 2 * WEIGHT_BYTES)
    for at in range(2 * LAYERS):
        assert sum(begun <= at < waited for begun, waited in found["begin_all_gather"]) <= 3


def test_each_collective_begins_after_the_one_before_it() -> None:
    module = a_pass()
    order, _ = places(module, LARGEST)
    begun = [node for node in module.graph.nodes if node.target in collectives.BEGUN.values()]
    assert len(order) == 2 * LAYERS
    assert [node.args[-1] for node in begun] == [None, *begun[:-1]]
