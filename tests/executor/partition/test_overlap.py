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


Place = tuple[int, int]


def places(module: fx.GraphModule, at_once_bytes: int) -> tuple[list[list[Place]], list[list[Place]]]:
    """Buckets of gathers and of sums, in the order in which they begin: for each row (begun, waited for), counted in
    products that were computed before."""
    graph = overlapped(module, at_once_bytes).graph
    products, begun = 0, {}
    found: dict[str, list[list[Place]]] = {"begin_all_gather": [], "begin_reduce_scatter": []}
    for node in graph.nodes:
        if node.target is torch.ops.aten.mm.default:
            products += 1
        elif node.target in collectives.BEGUN.values():
            bucket: list[Place] = []
            found[node.target.name().removeprefix("loadmaster::")].append(bucket)
            begun[node] = products, bucket
        elif node.target is collectives.wait_for:
            (begin,) = {row.args[0] for row in node.args[0]}
            at, bucket = begun.pop(begin)
            bucket += [(at, products)] * len(node.args[0])
    assert not begun
    return found["begin_all_gather"], found["begin_reduce_scatter"]


def rows(buckets: list[list[Place]]) -> list[Place]:
    return [row for bucket in buckets for row in bucket]


def test_with_room_everything_given_is_gathered_at_once_and_gradients_are_waited_for_at_the_end() -> None:
    gathers, sums = places(a_pass(), LARGEST)
    assert gathers == [[(0, 0)] * LAYERS]
    assert sums == [[(2 * LAYERS, 2 * LAYERS)] * LAYERS]


def test_a_bucket_is_a_quarter_of_the_room() -> None:
    gathers, sums = places(a_pass(), 8 * WEIGHT_BYTES)
    # Two products a layer: one with the weight, one for the gradient.
    assert gathers == [[(0, 0)] * 2, [(0, 4)] * 2]
    assert sums == [[(4, 8)] * 2, [(8, 8)] * 2]


def test_without_room_one_is_ahead() -> None:
    gathers, sums = map(rows, places(a_pass(), 0))
    # Each begins when the last but one is there, before that layer's products.
    assert [waited - begun for begun, waited in gathers] == [0, 2, 4, 4]
    assert [waited - begun for begun, waited in sums] == [2, 2, 2, 0]


def test_as_many_bytes_are_on_their_way_as_there_is_room_for() -> None:
    gathers, _ = places(a_pass(), 2 * WEIGHT_BYTES)
    for at in range(2 * LAYERS):
        assert sum(begun <= at < waited for begun, waited in rows(gathers)) <= 3


def test_what_is_needed_first_begins_first() -> None:
    graph = overlapped(a_pass(), 2 * WEIGHT_BYTES).graph
    gathers = [node for node in graph.nodes if node.target is collectives.BEGUN[collectives.all_gather]]
    shares = [row.all_input_nodes[0] for node in gathers for row in node.args[0]]
    assert shares == graph.find_nodes(op="placeholder")[1:]


def test_each_collective_begins_after_the_one_before_it() -> None:
    graph = overlapped(a_pass(), 0).graph
    begun = [node for node in graph.nodes if node.target in collectives.BEGUN.values()]
    first_rows = [next(user for user in node.users if user.args[1] == 0) for node in begun]
    assert len(begun) == 2 * LAYERS
    assert [node.args[-1] for node in begun] == [None, *first_rows[:-1]]


def test_where_passes_differ_nothing_is_put_together_or_begun_elsewhere() -> None:
    before, after = a_pass(), overlapped(a_pass(), LARGEST, alike=False)
    begun = [node for node in after.graph.nodes if node.target in collectives.BEGUN.values()]
    whole = [node for node in before.graph.nodes if node.target in collectives.BEGUN]
    assert [node.target for node in begun] == [collectives.BEGUN[node.target] for node in whole]
    assert all(len(node.args[0]) == 1 for node in begun)


def test_what_little_depends_on_a_sum_is_computed_at_the_end_and_gathered_together() -> None:
    """As a norm's gradient: summed over ranks, written in another type, gathered."""

    def run(x: Tensor, *weights: Tensor) -> list[Tensor]:
        gradients = []
        for weight in weights:
            x = x @ weight
            share = collectives.reduce_scatter(x.sum(0), 2, "group").half()
            gradients.append(collectives.all_gather(share, share.numel(), 2, "group"))
        return [x, *gradients]

    mode = FakeTensorMode()
    with mode:
        given = [torch.empty(100 * WIDTH, WIDTH), *(torch.empty(WIDTH, WIDTH) for _ in range(LAYERS))]
        module = make_fx(run)(*given)
    gathers, sums = places(module, 4 * LAYERS * WIDTH * 4)
    assert gathers == [[(LAYERS, LAYERS)] * LAYERS]
    assert sums == [[(LAYERS, LAYERS)] * LAYERS]


def test_rows_of_several_types_or_groups_do_not_move_together() -> None:
    def run(x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
        gathered = [(x, "group"), (y, "group"), (z, "other"), (x + 1, "group")]
        return [collectives.all_gather(row, row.numel(), 2, group) for row, group in gathered]

    mode = FakeTensorMode()
    with mode:
        module = make_fx(run)(torch.empty(8), torch.empty(8, dtype=torch.half), torch.empty(8))
    gathers, _ = places(module, LARGEST)
    assert [len(bucket) for bucket in gathers] == [1, 1, 1, 1]
