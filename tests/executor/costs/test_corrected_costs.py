"""Two factors: what counts FLOPs, and everything else; a corrected problem is planned with both."""

from __future__ import annotations

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from loadmaster.executor.costs import roofline
from loadmaster.executor.costs.model import Corrected
from loadmaster.executor.memory.capture import CaptureOptions, capture_step
from loadmaster.models.memory.checker import check
from tests.executor.memory.models import convnet_case
from tests.executor.memory.schedules import schedule

aten = torch.ops.aten


def node(op, *arguments):
    """A node of a graph whose inputs have these fake values."""
    graph = fx.Graph()
    inputs = []
    for argument in arguments:
        inputs.append(graph.placeholder("x"))
        inputs[-1].meta["val"] = argument
    made = graph.call_function(op, tuple(inputs))
    made.meta["val"] = op(*arguments)
    return made


def test_products_and_moves_have_factors_of_their_own():
    with FakeTensorMode():
        x = torch.empty(64, 64)
        product, move = node(aten.mm.default, x, x), node(aten.relu.default, x)
    base = roofline("h200")
    corrected = Corrected(base, products=3.0, moves=0.5)
    assert corrected.node_us(product) == 3.0 * base.node_us(product)
    assert corrected.node_us(move) == 0.5 * base.node_us(move)
    assert corrected.move_us(10_000, 2) == 0.5 * base.move_us(10_000, 2)
    assert corrected.workspace_bytes(product) == base.workspace_bytes(product)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_plans_time_is_the_sum_of_both_sorts(backend):
    """What fitting relies on: times under (a, b) are a times those under (1, 0) and b times those under (0, 1)."""
    captured = capture_step(*convnet_case(), CaptureOptions(hardware="cpu", backend=backend))
    by_hand = schedule(captured.problem(), lambda i: i % 2 == 0)

    def time_us(products, moves):
        return check(captured.problem(Corrected(captured.costs, products, moves)), by_hand, 1 << 60).time_us

    parts = time_us(1.0, 0.0), time_us(0.0, 1.0)
    assert min(parts) > 0
    assert time_us(1.0, 1.0) == pytest.approx(sum(parts))
    assert time_us(2.0, 0.5) == pytest.approx(2.0 * parts[0] + 0.5 * parts[1])
