"""Faults of PyTorch that Loadmaster works around. A test that fails here says what may go: PyTorch is mended.

Not tested here, since it takes a GPU, several processes or a C++ compiler: what ``patches.REPLACED`` has without
``has_test``; ``memory.run.channels_last`` (PyTorch issue 188236); the view that ``steps.sent_graph`` undoes; the
tilings that ``partition.compiled`` leaves unanalysed; layouts of fake kernels (``memory.run.backends.eager``).
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch._functorch.aot_autograd import aot_function
from torch._functorch.compilers import nop

from loadmaster.errors import TESTED_TORCH
from loadmaster.executor.torch_private.dynamo import dynamo_errors
from loadmaster.executor.torch_private.functorch import functorch_config
from loadmaster.executor.torch_private.inductor import min_cut_partition
from loadmaster.executor.torch_private.patches import REPLACED

aten = torch.ops.aten
PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"


def expect_refused(function, *arguments):
    """Dynamo makes no single graph of the function, which runs without it."""
    torch.compiler.reset()
    function(*arguments)
    with pytest.raises((dynamo_errors.Unsupported, dynamo_errors.UserError)):
        torch.compile(function, backend="eager", fullgraph=True)(*arguments)


def into_a_leaf(x):
    x.requires_grad_(True)
    return torch.autograd.grad((x**2).sum(), x)[0].sum()


def into_a_leaf_by_attribute(x):
    x.requires_grad = True
    return torch.autograd.grad((x**2).sum(), x)[0].sum()


def made_as_a_leaf(x):
    leaf = torch.rand(3, requires_grad=True)
    return torch.autograd.grad((leaf * x).sum(), leaf)[0].sum()


LEAVES = {
    "method_requires_grad_": into_a_leaf,
    "call_setattr": into_a_leaf_by_attribute,
    "call_function": made_as_a_leaf,
}


@pytest.mark.parametrize("name", LEAVES)
def test_dynamo_makes_no_leaf_inside_a_graph(name):
    """If this fails, the change of this name in steps/one_graph/dynamo_changes.py may go."""
    expect_refused(LEAVES[name], torch.ones(3))


def test_dynamo_does_not_know_the_numbers_of_a_range():
    """If this fails, the change of ranges in steps/one_graph/dynamo_changes.py may go."""
    expect_refused(lambda x: x.sum(torch.arange(1, 3).tolist()), torch.ones(2, 3, 4))


def test_a_transformer_branches_on_its_mask():
    """If this fails, the change of masks in steps/one_graph/dynamo_changes.py may go."""
    layer = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    mask = nn.Transformer.generate_square_subsequent_mask(4)
    expect_refused(lambda x: encoder(x, mask=mask), torch.ones(2, 4, 8))


def test_the_partition_draws_again_under_a_budget():
    """If this fails, PyTorch issue 190758 is mended: KeptDraws, TENSORS_SAVED and warn_of_users_budget in
    steps/drawn_once.py may go, and with them compile_drawing_once.
    """
    halves = []

    def partitioned(joint, *inputs, **settings):
        with functorch_config.patch(activation_memory_budget=0.01):
            halves.extend(min_cut_partition(joint, *inputs, **settings))
        return tuple(halves)

    def attentions(x, *weights):
        for weight in weights:
            value = (x @ weight).reshape(2, -1, 4, 4)
            ones = torch.ones_like(value)
            attention = aten._scaled_dot_product_efficient_attention.default
            x = attention(ones, ones, value, None, True, 0.3)[0].reshape(x.shape)
        return x.sum()

    x, weights = torch.empty(64, 16, device="meta"), [torch.empty(16, 16, device="meta") for _ in range(4)]
    aot_function(attentions, nop, nop, partitioned)(x, *(weight.requires_grad_() for weight in weights))
    target = aten._scaled_dot_product_efficient_attention.default
    assert halves[1].graph.find_nodes(op="call_function", target=target)


def test_transforms_refuse_to_run_under_hooks():
    """If this fails, placement/cache/functorch.py may go."""
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x)
    with hooks, pytest.raises(RuntimeError, match="hooks"):
        torch.func.grad(lambda x: (x**2).sum())(torch.ones(3))


# Entry for old versions -> the first version that does without.
UNTIL = {
    "torch_private.inductor.LAUNCHES_FAST, and steps/launches.py with it": (2, 13),
    "the second of torch_private.dynamo._SETTERS": (2, 13),
    "torch_private.dynamo.OWN_HANDLERS": (2, 13),
    "torch_private.dynamo.IGNORED_CALLS": (2, 12),
    "steps.one_graph.graph_breaks._is_worth_logging": (2, 12),
    "steps.drawn_once.EACH_DRAW_ITS_OWN": (2, 14),
    "names of earlier methods in collective.process_group": (2, 13),
}


def test_the_oldest_version_is_the_one_that_is_asked_for():
    assert f'"torch>={TESTED_TORCH[0]}"' in PYPROJECT.read_text("utf-8")


@pytest.mark.parametrize("entry", UNTIL)
def test_the_oldest_version_still_needs(entry):
    """If this fails, the entry may go: no version that is supported needs it."""
    assert tuple(map(int, TESTED_TORCH[0].split("."))) < UNTIL[entry]


def test_every_entry_that_claims_a_test_has_one():
    text = Path(__file__).read_text("utf-8")
    for one in REPLACED:
        if one.has_test and one.by.startswith("steps"):
            assert one.by.rpartition(".")[2] in text
