"""Attention's dropout from a seed: what the pass leaves of the graph, on fake CUDA tensors; kernels need a GPU."""

from __future__ import annotations

import operator

import pytest
import torch
from joint_graphs import prepared_step
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from loadmaster.executor.costs.traffic import flops
from loadmaster.executor.memory.implementations.attention import draw_seed, seed_attention, seeded_attention
from loadmaster.executor.memory.implementations.emitting import call
from loadmaster.executor.steps.step_graph import is_random

aten = torch.ops.aten
NAMES = ["flash", "efficient", "cudnn"]


def joint(name, dropout):
    """Attention and its backward as AOTAutograd has them, on fake CUDA tensors."""
    graph = fx.Graph()
    forward = getattr(aten, f"_scaled_dot_product_{name}_attention").default
    backward = getattr(aten, f"_scaled_dot_product_{name}_attention_backward").default
    with FakeTensorMode():
        read = [graph.placeholder(n) for n in ("query", "key", "value", "gradient")]
        for node in read:
            node.meta["val"] = torch.empty(2, 4, 128, 64, device="cuda", dtype=torch.bfloat16)
        query, key, value, gradient = read
        options = (dropout, True) if name == "flash" else (None, True, dropout, True)
        attention = call(graph, forward, query, key, value, *options)
        r = [call(graph, operator.getitem, attention, i) for i in range(len(attention.meta["val"]))]
        if name == "flash":
            rest = (*r[:6], dropout, True, r[6], r[7])
        elif name == "efficient":
            rest = (None, *r, dropout, [True, True, True, False], True)
        else:
            rest = (*r[:2], r[6], r[7], None, *r[2:6], dropout, True)
        # The schema wants tensors where PyTorch itself passes none: emitted as they are, without a fake result.
        node = graph.call_function(backward, (gradient, query, key, value, *rest))
    graph.output((r[0], node))
    return graph


@pytest.mark.parametrize("name", NAMES)
def test_forward_can_be_run_again_and_backward_reads_its_seed(name):
    graph = joint(name, 0.1)
    seed_attention(graph)
    graph.lint()
    (attention,) = graph.find_nodes(op="call_function", target=seeded_attention._opoverload)
    (seed,) = graph.find_nodes(op="call_function", target=draw_seed._opoverload)
    assert is_random(seed)
    assert not is_random(attention)
    assert seed in attention.all_input_nodes
    assert flops(attention) > 0
    (backward,) = (n for n in graph.nodes if "backward" in n.name)
    read = [n for n in backward.all_input_nodes if n.target is operator.getitem]
    assert {n.args for n in read} == {(attention, i) for i in range(4)}
    if name != "efficient":
        assert 128 in backward.args
    assert not any("_scaled_dot_product" in str(n.target) for n in graph.nodes if n is not backward)
    with attention.meta["val"][0].fake_mode:
        again = seeded_attention(*fx.node.map_arg(attention.args, lambda n: n.meta["val"]))
    assert again[0].shape == (2, 4, 128, 64)


@pytest.mark.parametrize("name", NAMES)
def test_attention_without_dropout_is_left_alone(name):
    graph = joint(name, 0.0)
    before = str(graph)
    seed_attention(graph)
    assert str(graph) == before


def test_attention_spelled_out_replays_its_dropout_as_any_other():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 24)

        def forward(self, x):
            q, k, v = self.layer(x).view(2, 16, 3, 2, 4).permute(2, 0, 3, 1, 4)
            return F.scaled_dot_product_attention(q, k, v, dropout_p=0.25).square().mean()

    block = Block()
    step, operators = prepared_step(block)
    step(torch.randn(2, 16, 8)).backward()
    assert sum("seeded_dropout" in o for o in operators) == 2
    assert not any("native_dropout" in o for o in operators)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_same_seed_same_result_and_the_devices_own_generator_untouched(name):
    query, key, value = torch.randn(3, 2, 4, 128, 64, device="cuda", dtype=torch.bfloat16)
    seed = torch.tensor(1234)
    before = torch.cuda.get_rng_state()
    once, again, other = (
        seeded_attention(query, key, value, None, s, 0.3, True, None, name) for s in (seed, seed, torch.tensor(1235))
    )
    assert torch.equal(torch.cuda.get_rng_state(), before)
    assert torch.equal(once[0], again[0])
    assert not torch.equal(once[0], other[0])
    torch.cuda.manual_seed(1234)
    options = (0.3, True) if name == "flash" else (None, True, 0.3, True)
    plain = getattr(aten, f"_scaled_dot_product_{name}_attention")(query, key, value, *options)
    assert torch.equal(once[0], plain[0])


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_training_step_is_plain_attention_with_the_same_seeds(name):
    backend = getattr(torch.nn.attention.SDPBackend, f"{name.upper()}_ATTENTION")
    layer = nn.Linear(64, 192).cuda().bfloat16()
    x = torch.randn(2, 128, 64, device="cuda", dtype=torch.bfloat16)

    def step(x):
        q, k, v = layer(x).view(2, 128, 3, 2, 32).permute(2, 0, 3, 1, 4).unbind()
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.2).float().square().mean()

    with torch.nn.attention.sdpa_kernel(backend):
        compiled, operators = prepared_step(step)
        torch.manual_seed(5)
        loss = compiled(x)
        loss.backward()
        got = [p.grad for p in layer.parameters()]
        assert any("seeded_attention" in o for o in operators)
        torch.manual_seed(5)
        torch.cuda.manual_seed(int(torch.randint(0, 2**63 - 1, ())))
        expected = step(x)
    assert torch.equal(loss, expected)
    for have, want in zip(got, torch.autograd.grad(expected, list(layer.parameters())), strict=True):
        torch.testing.assert_close(have, want, rtol=1e-2, atol=1e-4)
