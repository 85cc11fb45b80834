"""Gradients of slices side by side are those that PyTorch adds up, and no tensor of full size is made for each."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from joint_graphs import arguments, flat, joint_graph
from torch import nn

from loadmaster.executor.memory.implementations.passes import run_passes

SIZES = (4, 6, 5)
PADDED = ("select_backward", "slice_backward")


class Reads(nn.Module):
    """Reads its argument, here a function of a weight, as it is told."""

    def __init__(self, read) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(SIZES, dtype=torch.float64))
        self.read = read

    def forward(self):
        return self.read(self.weight.tanh())


def scan(x):
    """A loop over positions, as Mamba's and every recurrent layer's."""
    state, sums = x.new_zeros(SIZES[0], SIZES[2]), []
    for i in range(SIZES[1]):
        state = (state * x[:, i]).cos() + x[:, i]
        sums.append(state.sum())
    return torch.stack(sums).sum()


def rotary(x):
    """Two halves, as rotary embeddings take them."""
    half = x.shape[1] // 2
    return (torch.cat([-x[:, half:], x[:, :half]], dim=1) * x.sin()).sum()


def first_and_last(x):
    return (x[:, 0].sin() * x[:, -1].cos()).sum()


def windows(x):
    return sum(x[:, i : i + 2].square().sin().sum() for i in range(5))


def one(x):
    return x[:, 2].sin().sum() + x.cos().sum()


def check(read):
    """The gradient is PyTorch's; how many tensors of full size a slice's gradient becomes."""
    torch.manual_seed(0)
    module = Reads(read)
    joint = joint_graph(module)
    given, tangents = arguments(module, (), [torch.ones((), dtype=torch.float64)])
    prepared = run_passes(joint)
    _, gradient = flat(prepared(given, tangents))
    read(module.weight.tanh()).backward()
    torch.testing.assert_close(gradient, module.weight.grad, rtol=1e-12, atol=1e-12)
    return sum(any(p in str(n.target) for p in PADDED) for n in prepared.graph.nodes)


@pytest.mark.parametrize(
    ("read", "left"), [(scan, 0), (rotary, 0), (first_and_last, 0), (windows, 0), (one, 1)], ids=lambda v: str(v)[:15]
)
def test_slices_of_a_sum_are_joined(read, left):
    assert check(read) == left


def test_each_dimension_has_a_sum_of_its_own():
    def read(x):
        return sum((x[:, i].sin().sum() + x[i].cos().sum() for i in range(4)), start=0.0)

    assert check(read) == 0


SLICES = st.tuples(st.integers(0, 2), st.integers(-3, 3), st.integers(1, 4), st.sampled_from([1, 1, 2]), st.booleans())


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(slices=st.lists(SLICES, min_size=1, max_size=6), also_whole=st.booleans())
def test_gradients_of_any_slices_are_pytorchs(slices, also_whole):
    def read(x):
        total = x.cos().sum() if also_whole else 0.0
        for n, (dimension, start, length, step, is_one) in enumerate(slices):
            first = range(SIZES[dimension])[start]
            part = x.select(dimension, start) if is_one else x.movedim(dimension, 0)[first : first + length : step]
            total = total + (part * (n + 1)).sin().sum()
        return total

    check(read)
