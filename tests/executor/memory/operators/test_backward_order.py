"""The order of the backward pass: what waits for its reader, and which nodes become one operator by it."""

from __future__ import annotations

import random

import pytest
import torch
from torch import fx, nn

from loadmaster.executor.memory.operators.backward_order import backward_order
from loadmaster.executor.memory.operators.grouping import group
from loadmaster.executor.steps.step_graph import StepGraph
from tests.executor.memory.models import transformer_case
from tests.executor.memory.tracing import trace
from tests.executor.tape import Tape

aten = torch.ops.aten


class Backward:
    """A tape whose calls all belong to the backward pass."""

    def __init__(self) -> None:
        self.tape = Tape()
        self.weight = self.tape.input(8, 8)
        self.tangent = self.tape.input(8, 8)
        self.tangent.target = "tangents_1"

    def order(self, *, fused: bool = True) -> list[str]:
        last = next(reversed(self.tape.graph.nodes))
        loss = self.tape.call(aten.sum.default, self.weight)
        self.tape.graph.output((loss, last))
        step_graph = StepGraph(fx.GraphModule(nn.Module(), self.tape.graph), (loss,), (last,))
        nodes = [n for n in step_graph.results if n not in step_graph.forward]
        return [n.name for n in backward_order(step_graph, nodes, fused=fused)]


def read_later() -> Backward:
    """An elementwise function of a product, another product, and what reads both."""
    made = Backward()
    call = made.tape.call
    product = call(aten.mm.default, made.tangent, made.weight)
    function = call(aten.exp.default, product)
    other = call(aten.mm.default, made.tangent, product)
    call(aten.add.Tensor, function, other)
    return made


def test_an_elementwise_result_waits_for_its_reader():
    assert read_later().order() == ["mm_default", "mm_default_1", "exp_default", "add_tensor"]


def test_node_by_node_nothing_waits():
    assert read_later().order(fused=False) == ["mm_default", "exp_default", "mm_default_1", "add_tensor"]


def test_what_makes_less_than_it_reads_comes_at_once():
    made = Backward()
    call = made.tape.call
    product = call(aten.mm.default, made.tangent, made.weight)
    total = call(aten.sum.dim_IntList, product, [0])
    other = call(aten.mm.default, made.weight, made.tangent)
    call(aten.mm.default, call(aten.add.Tensor, total, other), made.weight)
    assert made.order() == ["mm_default", "sum_dim_int_list", "mm_default_1", "add_tensor", "mm_default_2"]


def test_what_a_product_reads_does_not_wait():
    made = Backward()
    call = made.tape.call
    read = call(aten.exp.default, made.tangent)
    other = call(aten.mm.default, made.tangent, made.weight)
    call(aten.mm.default, other, read)
    assert made.order() == ["exp_default", "mm_default", "mm_default_1"]


@pytest.mark.parametrize("seed", range(20))
def test_everything_comes_after_what_it_reads(seed):
    chance, made = random.Random(seed), Backward()
    values = [made.tangent, made.weight]
    for _ in range(30):
        one, other = chance.choice(values), chance.choice(values)
        op = chance.choice([aten.mm.default, aten.add.Tensor, aten.mul.Tensor, aten.exp.default])
        values.append(made.tape.call(op, one) if op is aten.exp.default else made.tape.call(op, one, other))
    made.tape.call(aten.add.Tensor, values[-1], made.tangent)
    reads = {n.name: [i.name for i in n.all_input_nodes] for n in made.tape.graph.nodes}
    order = made.order()
    place = {name: i for i, name in enumerate(order)}
    assert len(order) == 31
    assert all(place[i] < place[name] for name in order for i in reads[name] if i in place)


def test_the_derivative_of_an_activation_is_one_operator():
    model, inputs, loss = transformer_case(dtype=torch.float32, layers=1)
    found = group(trace(model, inputs, loss), fused=True)
    fused = [b for b in found.backward if any("gelu_backward" in n.name for n in b.nodes)]
    assert len(fused) == 1
