"""Random numbers are drawn once a step, whatever of torch.compile's own partition is computed again."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx, nn
from torch._functorch import config as functorch_config
from torch._functorch.aot_autograd import aot_function
from torch._functorch.compilers import nop
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor import config as inductor_config
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.utils.checkpoint import checkpoint

from loadmaster.executor import KnobStep, apply, capture
from loadmaster.executor.memory.fit.same_draws import ByOperator
from loadmaster.executor.memory.implementations.passes import run_passes
from loadmaster.executor.steps.drawn_once import LEAST_BUDGET, TENSORS_SAVED, KeptDraws, keep_draws
from loadmaster.executor.steps.one_graph.replaced_attributes import patched
from tests.executor.memory.random_tower import OPERATORS, WIDTH, RandomTower, expect_one, shares
from tests.executor.memory.schedules import plan, schedule

aten = torch.ops.aten


@pytest.fixture
def x():
    torch.manual_seed(0)
    return torch.randn(16, WIDTH)


@pytest.mark.slow
@pytest.mark.parametrize("knob", [0.0, 0.5])
def test_the_backward_pass_has_what_every_operator_drew(x, knob):
    """Its draws would be others: see ByOperator."""
    model = RandomTower(list(OPERATORS))
    expect_one(shares(ByOperator(KnobStep(model, knob=knob)), model, x))


@pytest.mark.slow
@pytest.mark.parametrize("knob", [0.0, 0.3, 0.5, 0.7, 1.0])
def test_compiled_dropout_on_both_sides_of_a_graph_break(knob):
    """What was wrong: 0.184, 0.184, 0.343, 0.529 at one of these, of 1."""
    torch.manual_seed(0)
    model = RandomTower(["dropout"] * 4, breaks=True, width=64)
    x = torch.randn(512, 64)
    expect_one(shares(KnobStep(model, knob=knob), model, x))


@pytest.mark.gpu
@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize("knob", [0.0, 0.3, 0.5, 0.7, 1.0])
def test_compiled_draws_on_a_gpu(knob, breaks):
    torch.manual_seed(0)
    model = RandomTower(list(OPERATORS), breaks=breaks).cuda()
    expect_one(shares(KnobStep(model, knob=knob), model, torch.randn(64, WIDTH, device="cuda")))


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_planned_draws_on_a_gpu(backend):
    torch.manual_seed(0)
    model, x = RandomTower(list(OPERATORS)).cuda(), torch.randn(64, WIDTH, device="cuda")
    problem = capture(model, (x,), backend=backend)
    step = apply(plan(problem, schedule(problem, lambda i: False)), model, backend=backend)
    expect_one(shares(step, model, x))


class Checkpointed(nn.Module):
    """The user's own checkpoint around what draws."""

    def __init__(self, tower: RandomTower) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, x):
        return checkpoint(self.tower, x, use_reentrant=False)


@pytest.mark.slow
def test_what_a_checkpoint_computes_again_has_the_same_draws(x):
    tower = RandomTower(["dropout", "bernoulli_", "dropout"])
    expect_one(shares(KnobStep(Checkpointed(tower), knob=0.5), tower, x))


def drawing_graph() -> fx.GraphModule:
    """Two draws alike of an operator that PyTorch takes for one, times each other."""
    graph = fx.Graph()
    x = graph.placeholder("primals_1")
    x.meta["val"] = torch.empty(4)
    both = [graph.call_function(aten.exponential.default, (x,)) for _ in range(2)]
    product = graph.call_function(aten.mul.Tensor, tuple(both))
    for node in (*both, product):
        node.meta["val"] = torch.empty(4)
    graph.output((product,))
    return fx.GraphModule(nn.Module(), graph)


def test_two_draws_alike_are_two():
    joint = run_passes(drawing_graph())
    assert len(joint.graph.find_nodes(op="call_function", target=aten.exponential.default)) == 2


class Counts(CustomGraphPass):
    def __init__(self, name):
        self.name, self.graphs = name, []

    def __call__(self, graph):
        self.graphs.append(graph)

    def uuid(self):
        return self.name


def test_the_users_pass_runs_before_and_is_part_of_the_key():
    graph, one, other = drawing_graph().graph, Counts("one"), Counts("other")
    KeptDraws([one])(graph)
    assert one.graphs == [graph]
    keys = {repr(KeptDraws(passes).uuid()) for passes in ([], [one], [other], [one, other])}
    assert len(keys) == 4
    assert KeptDraws([one, lambda graph: None]).uuid() is None  # no caching, as PyTorch has it for such a pass
    assert KeptDraws([Counts(None)]).uuid() is None


@pytest.mark.slow
def test_the_users_settings_stay_and_take_part():
    model, seen = RandomTower(["dropout", "dropout"]), Counts("seen")
    with inductor_config.patch(joint_custom_post_pass=seen), functorch_config.patch(activation_memory_budget=0.0):
        step = ByOperator(KnobStep(model, knob=0.5))
        expect_one(shares(step, model, torch.randn(16, WIDTH)))
        assert inductor_config.joint_custom_post_pass is seen
        assert functorch_config.activation_memory_budget == 0.0
    assert seen.graphs


def test_each_result_of_several_is_kept_under_a_name_of_its_own():
    graph = fx.Graph()
    x = graph.placeholder("primals_1")
    x.meta["val"] = torch.empty(4)
    drawn = graph.call_function(torch.ops.loadmaster_tests.two_noises.default, (x,))
    drawn.meta["val"] = (torch.empty(4), torch.empty(4))
    parts = [graph.call_function(operator.getitem, (drawn, place)) for place in (0, 1)]
    for part in parts:
        part.meta["val"] = torch.empty(4)
    product = graph.call_function(aten.mul.Tensor, tuple(parts))
    graph.output((product,))
    keep_draws(graph)
    assert [n.target for n in product.all_input_nodes] == [aten.detach.default] * 2
    assert all("recompute" in n.meta for n in (drawn, *product.all_input_nodes))
    assert all("recompute" not in n.meta for n in parts)


ATTENTION = aten._scaled_dot_product_efficient_attention.default


def attentions(x, *weights):
    """Attention of a GPU, with dropout: its backward pass alone reads the seed of its mask."""
    for weight in weights:
        value = (x @ weight if weight.dim() == 2 else x * weight).reshape(2, -1, 4, 4)
        x = ATTENTION(torch.ones_like(value), torch.ones_like(value), value, None, True, 0.3)[0].reshape(x.shape)
    return x.sum()


@pytest.mark.parametrize("size", [(16, 16), (16,)], ids=["products", "nothing else that is costly"])
@pytest.mark.parametrize("budget", [LEAST_BUDGET, 0.3, 0.7])
def test_no_attention_with_dropout_is_computed_again(size, budget):
    """With the seeds unmarked, all but the first were."""
    found = []

    def partitioned(joint, *inputs, **settings):
        keep_draws(joint.graph)
        with patched(TENSORS_SAVED), functorch_config.patch(activation_memory_budget=budget):
            found.extend(min_cut_rematerialization_partition(joint, *inputs, **settings))
        return tuple(found)

    x, weights = torch.empty(64, 16, device="meta"), [torch.empty(size, device="meta") for _ in range(4)]
    aot_function(attentions, nop, nop, partitioned)(x, *(weight.requires_grad_() for weight in weights))
    assert [len(half.graph.find_nodes(op="call_function", target=ATTENTION)) for half in found] == [4, 0]
