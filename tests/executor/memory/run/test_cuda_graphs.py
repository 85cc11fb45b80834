"""mode="reduce-overhead": the numbers of plain PyTorch, and a word where there can be no CUDA graphs."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
from torch import fx, nn

from loadmaster.errors import InputError
from loadmaster.executor import KnobStep, apply
from loadmaster.executor.costs import roofline
from loadmaster.executor.memory.capture import CaptureOptions, capture
from loadmaster.executor.memory.fit import trial_runs
from loadmaster.executor.memory.fit.fitter import Fitter
from loadmaster.executor.memory.fit.trial_runs import TrialRuns
from loadmaster.executor.steps.cuda_graphs import why_not
from loadmaster.executor.steps.measure import Measurement
from loadmaster.executor.steps.timeline import Span, Timeline
from loadmaster.executor.steps.transfers import send
from tests.executor.memory.hand_planner import HandPlanner, keep_nothing_peak
from tests.executor.memory.models import mlp_case


class Noisy(nn.Module):
    """Running statistics and dropout: what a step writes beside gradients, and what differs from step to step."""

    def __init__(self, p=0.0):
        super().__init__()
        wide = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.GELU(), nn.Dropout(p), nn.Linear(256, 64))
        self.layers = nn.Sequential(*(copy.deepcopy(wide) for _ in range(3)))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


def planned(model, batch, loss, **options):
    """The step under a plan that recomputes."""
    problem = capture(model, batch, loss, costs=roofline("cpu"))
    plan = HandPlanner(1)(problem.with_budget((keep_nothing_peak(problem) * 5) // 4))
    return apply(plan, model, loss, **options)


def trained(model, call, batches, steps=6):
    """Losses and parameters of a few steps."""
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    losses = []
    for step in range(steps):
        loss = call(*batches[step % len(batches)])
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return losses, [t.detach().clone() for t in (*model.parameters(), *model.buffers())]


def test_without_a_gpu_it_runs_and_says_why(caplog):
    model, batch, loss = mlp_case()
    plain = copy.deepcopy(model)
    step = planned(model, batch, loss, backend="eager", mode="reduce-overhead")
    with caplog.at_level(logging.WARNING, logger="loadmaster"):
        losses, parameters = trained(model, step, [batch], steps=2)
    assert "the forward pass runs without CUDA graphs: it has tensors on cpu" in caplog.text
    expected, plain_parameters = trained(plain, lambda x, y: loss(plain(x), y), [batch], steps=2)
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(parameters, plain_parameters)


def test_modes_are_checked():
    model, batch, loss = mlp_case()
    for make in (
        lambda: planned(model, batch, loss, mode="max-autotune"),
        lambda: KnobStep(model, loss, knob=0.5, mode="max-autotune"),
        lambda: Fitter(model, batch, loss, mode="max-autotune"),
    ):
        with pytest.raises(InputError, match=r"mode: is unknown.*default, reduce-overhead"):
            make()
    with pytest.raises(InputError, match="enforce: sees nothing of CUDA graphs"):
        planned(model, batch, loss, mode="reduce-overhead", enforce=True)
    with pytest.raises(InputError, match="mode: overwrites the gradients"):
        Fitter(model, batch, loss, CaptureOptions(gradients_held=True), mode="reduce-overhead")


def graph_of(device, *, copies=False, writes=False):
    """A graph that adds up, sends, or writes over its second input."""
    mode = torch._subclasses.FakeTensorMode()
    graph = fx.Graph()
    one, other = graph.placeholder("one"), graph.placeholder("other")
    with mode:
        for node in (one, other):
            node.meta["val"] = torch.empty(4, device=device)
        made = graph.call_function(torch.ops.aten.add.Tensor, (one, other))
        made.meta["val"] = torch.empty(4, device=device)
    if copies:
        graph.call_function(send, (made, [1]))
    if writes:
        graph.call_function(torch.ops.aten.copy_.default, (other, made)).meta["val"] = other.meta["val"]
    graph.output((made,))
    return fx.GraphModule(nn.Module(), graph)


def test_what_cannot_be_recorded_is_named():
    assert why_not(graph_of("cuda"), [0]) is None
    assert why_not(graph_of("cpu"), [0]) == "it has tensors on cpu"
    assert why_not(graph_of("cuda", copies=True), [0]) == "the plan sends results to the host"
    assert why_not(graph_of("cuda", writes=True), [0]) == "it writes over 1 of its inputs"
    assert why_not(graph_of("cuda", writes=True), [0, 1]) is None, "a buffer stays where it is"


@pytest.fixture
def fitter():
    return Fitter(
        *mlp_case(), CaptureOptions(costs=roofline("cpu"), backend="eager"), repeats=1, mode="reduce-overhead"
    )


def test_fit_counts_kernels_where_graphs_are_to_come(fitter, monkeypatch):
    """Not their launches, which graphs leave out; nor copies to the host, which run beside."""
    spans = (Span("gemm", 0, 0.0, 30.0), Span("triton_poi_add", 0, 30.0, 12.0), Span("Memcpy HtoD", 1, 0.0, 9e9))
    monkeypatch.setattr(TrialRuns, "counts_kernels", True)
    monkeypatch.setattr(trial_runs, "record", lambda *_: Timeline("cuda", spans, ((0.0, 0),)))
    fitted = fitter.fit(HandPlanner(), keep_nothing_peak(fitter.capture().plain) * 2, tries=1)
    assert [tried.measured.step_us for tried in fitted.tries] == [42.0]
    assert "These times are of kernels alone. In mode reduce-overhead it measured" in fitted.report


def test_fit_gives_the_winner_in_the_mode(fitter):
    budget_bytes = keep_nothing_peak(fitter.capture().plain) * 2
    fitted = fitter.fit(HandPlanner(), budget_bytes, tries=1)
    assert fitted.step.planned.mode == "reduce-overhead" and fitted.step.plans == (fitted.plan,)
    assert "In mode reduce-overhead it measured" in fitted.report


@pytest.mark.parametrize("why", ["too large", "broken"])
def test_fit_leaves_the_mode_where_it_does_not_work(fitter, monkeypatch, why):
    budget_bytes = keep_nothing_peak(fitter.capture().plain) * 2

    def run(_self, step, *_args):
        records = step.planned.mode != "default"
        if records and why == "broken":
            raise RuntimeError("a kernel that cannot be recorded")
        used_bytes = budget_bytes + records
        return Measurement(used_bytes, 0, 100.0, used_bytes, used_bytes)

    monkeypatch.setattr(TrialRuns, "run", run)
    fitted = fitter.fit(HandPlanner(), budget_bytes, tries=1)
    assert fitted.step.planned.mode == "default"
    assert "and runs without" in fitted.report


@pytest.mark.gpu
@pytest.mark.parametrize("make", ["plan", "knob"])
def test_replays_train_as_plain_pytorch_does(make):
    torch.manual_seed(0)
    model = Noisy().cuda()
    plain = copy.deepcopy(model)
    loss = nn.MSELoss()
    batches = [(torch.randn(512, 64).cuda(), torch.randn(512, 64).cuda()) for _ in range(3)]
    if make == "plan":
        step = planned(model, batches[0], loss, mode="reduce-overhead")
    else:
        step = KnobStep(model, loss, knob=0.5, mode="reduce-overhead")
    losses, state = trained(model, step, batches)
    expected, plain_state = trained(plain, lambda x, y: loss(plain(x), y), batches)
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state, plain_state, rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
def test_replays_launch_graphs_and_draw_other_masks():
    torch.manual_seed(0)
    model = Noisy(p=0.5).cuda()
    batch = (torch.randn(512, 64).cuda(), torch.randn(512, 64).cuda())
    step = planned(model, batch, nn.MSELoss(), mode="reduce-overhead")

    def run():
        model.zero_grad()
        loss = step(*batch)
        loss.backward()
        return loss.item()

    for _ in range(3):
        run()
    losses = {run() for _ in range(4)}
    assert len(losses) == 4, "each step has masks of its own"
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        run()
    launches = {e.key: e.count for e in profiler.key_averages() if "Launch" in e.key}
    assert launches.get("cudaGraphLaunch") == 2, launches


@pytest.mark.gpu
def test_fit_in_the_mode_keeps_the_budget():
    torch.manual_seed(0)
    model = Noisy().cuda()
    batch = (torch.randn(4096, 64).cuda(), torch.randn(4096, 64).cuda())
    fitter = Fitter(model, batch, nn.MSELoss(), mode="reduce-overhead")
    budget_bytes = keep_nothing_peak(fitter.capture().plain) * 2
    fitted = fitter.fit(HandPlanner(), budget_bytes, tries=1, knob_tries=1)
    assert "In mode reduce-overhead it measured" in fitted.report, fitted.report
