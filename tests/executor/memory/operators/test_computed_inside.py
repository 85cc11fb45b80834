"""What the backward pass computes inside its kernels for itself, against cuts found by trying all of them."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch
from torch import fx, nn

from loadmaster.executor.memory.operators.computed_inside import with_computed_inside
from loadmaster.executor.memory.operators.grouping import group
from loadmaster.executor.steps.step_graph import StepGraph
from tests.executor.memory.replay import Replay
from tests.executor.memory.schedules import schedule
from tests.executor.memory.tracing import trace
from tests.executor.tape import Tape

aten = torch.ops.aten
WIDTH = 8


def gelu_as_formula(x):
    """GPT-2's, as transformers writes it."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def softmax_in_float32(x):
    return torch.softmax(x.float(), -1).to(x.dtype)


class Between(nn.Module):
    """A function between two products."""

    def __init__(self, function, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.function = function
        self.first = nn.Linear(WIDTH, WIDTH, bias=False, dtype=dtype)
        self.last = nn.Linear(WIDTH, WIDTH, bias=False, dtype=dtype)

    def forward(self, x):
        return self.last(self.function(self.first(x))).float().sum()


def kept(function, dtype: torch.dtype = torch.float32, *, fused: bool = True) -> list[str]:
    """What plans may keep of what the function makes and reads, by the operator that makes it."""
    found = group(trace(Between(function, dtype), (torch.randn(4, WIDTH, dtype=dtype),)), fused=fused)
    return [f.nodes[-1].name for f in found.forward[:-1] if f.nodes]


@pytest.mark.parametrize(
    ("function", "dtype", "expected"),
    [
        (gelu_as_formula, torch.float32, ["mm", "mul_3"]),
        (lambda x: x * torch.sigmoid(1.702 * x), torch.float32, ["mm", "mul_1"]),
        (lambda x: torch.relu(x) ** 2, torch.float32, ["mm", "relu", "pow_1"]),  # a ReLU has smaller encodings
        (lambda x: x * torch.tanh(nn.functional.softplus(x)), torch.float32, ["mm", "mul"]),
        (softmax_in_float32, torch.bfloat16, ["mm", "_to_copy_1"]),  # x has half the bytes
        (lambda x: torch.softmax(x, -1), torch.float32, ["_softmax"]),  # x has as many
        (torch.exp, torch.float32, ["exp"]),  # the next product's gradient reads it
        (torch.relu, torch.float32, ["mm", "relu"]),
        (lambda x: torch.cumsum(x, 0).tanh() * 2, torch.float32, ["cumsum", "mul"]),  # as a sum is written anyway
    ],
)
def test_of_a_formula_only_what_it_begins_and_ends_with_is_kept(function, dtype, expected):
    assert kept(function, dtype) == expected


def test_node_by_node_nothing_is_computed_inside():
    assert {"mm", "tanh", "mul_3"} < set(kept(gelu_as_formula, fused=False))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("function", "dtype"), [(gelu_as_formula, torch.float32), (softmax_in_float32, torch.bfloat16)]
)
def test_gradients_are_those_of_the_joint_graph_whatever_is_kept(function, dtype, seed):
    inputs = (torch.randn(4, WIDTH, dtype=dtype),)
    replay = Replay(Between(function, dtype), inputs, None)
    random.seed(seed)
    found = replay.under(schedule(replay.problem, lambda _: random.random() < 0.5))
    torch.testing.assert_close(found, replay.expected(), rtol=0, atol=0)


class Formulas:
    """A random forward pass of elementwise operators on products, and a fused run that reads some of its results."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        tape = Tape()
        weight, tangent = tape.input(WIDTH, WIDTH), tape.input()
        tangent.target = "tangents_1"
        inputs = [tape.input(chance.choice([1, 4, 16]), WIDTH) for _ in range(chance.randint(1, 3))]
        self.products = [tape.call(aten.mm.default, x, weight) for x in inputs]
        made = list(self.products)
        for _ in range(chance.randint(2, 6)):
            one, other = chance.choice(made), chance.choice(made)
            rows = {1, one.meta["val"].shape[0], other.meta["val"].shape[0]}
            if len(rows) < 3 and chance.random() < 0.6:
                made.append(tape.call(aten.mul.Tensor, one, other))
            else:
                made.append(tape.call(aten.sin.default, one))
        loss = self.total(tape, made, tape.call(aten.sum.default, weight))
        self.wanted = chance.sample(made, chance.randint(1, min(4, len(made))))
        gradient = self.total(tape, self.wanted, tangent)
        tape.graph.output((loss, gradient))
        self.made = made
        self.step_graph = StepGraph(fx.GraphModule(nn.Module(), tape.graph), (loss,), (gradient,))
        self.run = [n for n in self.step_graph.results if n not in self.step_graph.forward]

    @staticmethod
    def total(tape: Tape, of: list[fx.Node], first: fx.Node) -> fx.Node:
        for node in of:
            first = tape.call(aten.add.Tensor, tape.call(aten.sum.default, node), first)
        return first

    def least_bytes(self) -> int:
        """Of what the run must be given, by trying all sets of results."""
        sizes = range(len(self.made) + 1)
        sets = itertools.chain.from_iterable(itertools.combinations(self.made, n) for n in sizes)
        return min(sum(map(self.step_graph.bytes_of, given)) for given in sets if self._suffices(set(given)))

    def _suffices(self, given: set[fx.Node]) -> bool:
        stack = [n for n in self.wanted if n not in given]
        while stack:
            node = stack.pop()
            if node in self.products:
                return False
            stack += [n for n in node.all_input_nodes if n not in given]
        return True


@pytest.mark.parametrize("seed", range(60))
def test_a_run_is_given_the_fewest_bytes_that_it_can_be_computed_from(seed):
    case = Formulas(seed)
    found = with_computed_inside(case.step_graph, [case.run], ())
    backward = [n for n in found.results if n not in found.forward]
    given = [r for r in found.reads(backward) if r in found.forward and not found.is_resident(r)]
    assert sum(map(found.bytes_of, given)) == case.least_bytes()
