"""A step whose results travel to the host and back computes what plain PyTorch computes."""

from __future__ import annotations

import copy
import random
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.errors import InputError
from loadmaster.executor import apply, capture
from loadmaster.executor.memory.operators.grouping import group
from loadmaster.executor.memory.run.emission import emit
from loadmaster.executor.memory.run.segments import STAGE
from loadmaster.executor.steps import transfers
from loadmaster.models.hardware import HostLink
from loadmaster.models.memory.checker import check
from loadmaster.models.memory.plan import Fetch, MemoryPlan, Schedule
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.planner import plan as plan_problem
from loadmaster.planner.options import PlanOptions
from tests.executor.memory.models import SMALL, convnet_case, mlp_case, transformer_case
from tests.executor.memory.replay import Replay
from tests.executor.memory.schedules import plan, schedule, travelling
from tests.executor.memory.tracing import trace

pytestmark = pytest.mark.slow  # most of its tests trace and run a model

CASES = {"mlp": mlp_case, "convnet": convnet_case, "transformer": transformer_case}
LINK = HostLink(to_host_gbps=10.0, from_host_gbps=10.0)


@pytest.fixture(scope="module")
def captured():
    found = {}
    for name, case in (CASES | SMALL).items():
        model, inputs, loss = case()
        problem = capture(model, inputs, loss, hardware="cpu", backend="eager", host_link=LINK, name=name)
        found[name] = (model, inputs, loss, problem)
    return found


@pytest.fixture(scope="module")
def traced(captured):
    """The same steps, to run under many schedules."""
    return {name: Replay(*captured[name][:3], fused=False) for name in CASES}


def gradients(model, inputs, loss, chosen: MemoryPlan | None, backend: str = "eager"):
    """Loss, gradients and buffers, of plain PyTorch without a plan."""
    model = copy.deepcopy(model)
    if chosen is None:
        value = model(*inputs) if loss is None else loss(model(*inputs[:-1]), inputs[-1])
    else:
        value = apply(chosen, model, loss, backend=backend)(*inputs)
    value.backward()
    return [value.detach(), *(p.grad for p in model.parameters()), *model.buffers()]


def assert_equal(got, expected) -> None:
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert torch.equal(a, b)


def test_results_of_a_smaller_batch_travel_as_those_of_the_larger_one(captured):
    model, inputs, loss, problem = captured["convnet"]
    chosen = plan(problem, travelling(problem, schedule(problem, lambda i: True), lambda i: True))
    model = copy.deepcopy(model)
    step = apply(chosen, model, loss, backend="eager")
    step(*inputs).backward()
    model.zero_grad()
    part = tuple(t[:3] for t in inputs)
    expected = gradients(model, part, loss, None)
    value = step(*part)
    value.backward()
    assert_equal([value.detach(), *(p.grad for p in model.parameters()), *model.buffers()], expected)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("lead", "linger"), [(0, 1), (1, 2), (1000, 1000)])
def test_everything_travels(captured, name, lead, linger):
    model, inputs, loss, problem = captured[name]
    by_hand = travelling(problem, schedule(problem, lambda i: True), lambda i: True, lambda i: lead, lambda i: linger)
    assert len(by_hand.offload) >= 3
    verdict = check(problem, by_hand, 1 << 50)
    assert verdict.violations == ()
    assert_equal(gradients(model, inputs, loss, plan(problem, by_hand)), gradients(model, inputs, loss, None))


def test_buffers_are_written_in_the_segments_that_make_their_values(traced, captured):
    """What a norm's statistics become is written before the next cut, not after the last one."""
    *_, problem = captured["convnet"]
    by_hand = travelling(problem, schedule(problem, lambda i: True), lambda i: True)
    forward, _ = emit(traced["convnet"].operators, by_hand)
    copies = forward.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    assert len(copies) == 3 * 4  # mean, variance and the count of batches, of four norms
    segment, number = {}, 0
    for node in forward.graph.nodes:
        number += STAGE in node.meta
        segment[node] = number
    assert number > 4 and len({segment[c] for c in copies}) >= 4
    assert all(segment[c] == segment[c.args[1]] for c in copies)


def staying(problem: MemoryProblem, travelling: Schedule) -> Schedule:
    """The same computes and implementations, with every journey replaced by a stay on the device."""
    stages = list(travelling.stages)
    for i in travelling.offload:
        last = max(t for t, stage in enumerate(stages) if any(f.forward == i for f in stage.fetches))
        for t in range(last):
            stages[t] = replace(stages[t], keep=tuple(sorted({*stages[t].keep, i})))
    stays = Schedule(tuple(replace(stage, fetches=()) for stage in stages))
    assert check(problem, stays, 1 << 50).violations == ()
    return stays


def drawn(seed: int) -> Callable[..., float]:
    return lambda *key: random.Random(hash((seed, *key))).random()


def random_journeys(problem: MemoryProblem, seed: int, share: float) -> Schedule:
    """Some results are kept, some recomputed, some travel; other implementations of backward operators too."""
    draw = drawn(seed)
    by_hand = schedule(
        problem,
        lambda i: draw(i) < share,
        lambda k: int(draw(0, k) * len(problem.backward[k - 1].implementations)),
        lambda k, i: draw(1, k, i) < 0.5,
    )
    return travelling(
        problem,
        by_hand,
        lambda i: draw(2, i) < 0.6,
        lambda i: int(4 * draw(3, i)),
        lambda i: 1 + int(6 * draw(4, i)),
    )


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), name=st.sampled_from(sorted(CASES)), share=st.floats(0.3, 1))
def test_random_journeys(captured, traced, seed, name, share):
    problem = captured[name][-1]
    by_hand = random_journeys(problem, seed, share)
    assert check(problem, by_hand, 1 << 50).violations == ()
    got = traced[name].under(by_hand)
    for a, b in zip(got, traced[name].under(staying(problem, by_hand)), strict=True):
        assert a is b is None or torch.equal(a, b)
    for a, b in zip(got, traced[name].expected(), strict=True):
        assert a is b is None or torch.allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_the_planners_own_journeys(share):
    """Under a link that carries everything in no time, nothing but the wait for memory is left to plan."""
    model, inputs, loss = transformer_case(batch=8, tokens=64)
    link = HostLink(1e5, 1e5)
    problem = capture(model, inputs, loss, hardware="cpu", backend="eager", host_link=link)
    peak, resident = (
        check(problem, schedule(problem, lambda i: True), 1 << 50).peak_bytes,
        problem.forward[0].fixed_bytes,
    )
    budget = int(resident + share * (peak - resident))
    chosen = plan_problem(problem, PlanOptions(budget_bytes=budget, time_limit_s=10, gap=0.002))
    assert chosen.schedule is not None and chosen.schedule.offload
    verdict = check(problem, chosen.schedule, budget)
    assert verdict.ok and verdict.peak_bytes <= budget
    stays = plan(problem, staying(problem, chosen.schedule))
    assert_equal(gradients(model, inputs, loss, chosen), gradients(model, inputs, loss, stays))


@pytest.mark.slow
def test_inductor_carries_them_too(captured):
    model, inputs, loss, problem = captured["small transformer"]
    by_hand = random_journeys(problem, 5, 0.8)
    assert by_hand.offload
    got = gradients(model, inputs, loss, plan(problem, by_hand), backend="inductor")
    for a, b in zip(got, gradients(model, inputs, loss, None), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_images_travel_as_they_lie_under_inductor(captured, monkeypatch):
    """Channels last, in a forward pass cut at its waits too: a copy between layouts takes time and memory."""
    model, inputs, loss, problem = captured["small convnet"]
    by_hand = travelling(problem, schedule(problem, lambda i: True), lambda i: True, lambda i: 2)
    assert any(gone < len(problem.forward) for gone in by_hand.gone_before)
    seen = []
    flat = transfers._flat

    def watched(tensor, stride):
        seen.append((tensor.detach(), tuple(stride)))
        return flat(tensor, stride)

    monkeypatch.setattr(transfers, "_flat", watched)
    got = gradients(model, inputs, loss, plan(problem, by_hand), backend="inductor")
    assert all(tensor.stride() == stride for tensor, stride in seen)
    images = [tensor for tensor, _ in seen if tensor.dim() == 4]
    assert len(images) > len(by_hand.offload)  # most results are images, each sent and fetched
    assert all(image.is_contiguous(memory_format=torch.channels_last) for image in images)
    for a, b in zip(got, gradients(model, inputs, loss, None), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_bytes_stand_on_the_device_from_the_issue_to_the_last_read_only(captured):
    """The graphs say it: a source is an argument of its wait, a fetch starts at the stage that issues it."""
    model, inputs, loss, problem = captured["mlp"]
    by_hand = travelling(problem, schedule(problem, lambda i: True), lambda i: True, lambda i: 2, lambda i: 1)
    forward, backward = emit(group(trace(model, inputs, loss), fused=False), by_hand)
    order = {n: at for at, n in enumerate(forward.graph.nodes)}
    waits = [n for n in forward.graph.nodes if "sent" in str(n.target)]
    assert len(waits) == len([n for n in forward.graph.nodes if "send" in str(n.target)]) >= len(by_hand.offload)
    for wait in waits:
        source, host = wait.args
        assert max(source.users, key=order.__getitem__) is wait
        assert order[host] < order[wait]
    returned = set(forward.graph.output_node().all_input_nodes)
    assert not returned & {wait.args[0] for wait in waits}
    assert {wait.args[1] for wait in waits} <= returned
    order = {n: at for at, n in enumerate(backward.graph.nodes)}
    for arrived in (n for n in backward.graph.nodes if "fetched" in str(n.target)):
        result, host = arrived.args
        assert host.op == "placeholder"
        assert order[result] < order[arrived] < min(order[u] for u in result.users if u is not arrived)


@pytest.mark.parametrize("lead", [1, 2, 3])
def test_copies_start_and_end_at_the_stages_that_the_schedule_says(captured, lead):
    model, inputs, loss, problem = captured["mlp"]
    by_hand = travelling(problem, schedule(problem, lambda i: True), lambda i: True, lambda i: lead)
    operators = group(trace(model, inputs, loss), fused=False)
    _, backward = emit(operators, by_hand)
    order = {n.name: at for at, n in enumerate(backward.graph.nodes)}
    ends = [order[b.nodes[-1].name] for b in operators.backward]

    def stages(target):
        """Stage t is over once backward operator t has run."""
        return Counter(
            1 + sum(end < order[n.name] for end in ends)
            for n in backward.graph.nodes
            if n.op == "call_function" and n.target is target
        )

    arrivals = [(t, f) for t, stage in enumerate(by_hand.stages) for f in stage.fetches]
    results = {f: len(operators.forward[f].results) for f in by_hand.offload}
    assert len(arrivals) > 2 and any(t - f.issued_at == lead for t, f in arrivals)
    assert stages(transfers.fetch) == Counter(f.issued_at for _, f in arrivals for _ in range(results[f.forward]))
    assert stages(transfers.fetched) == Counter(t for t, f in arrivals for _ in range(results[f.forward]))


def test_two_steps_at_once_and_accumulation(captured):
    model, inputs, loss, problem = captured["transformer"]
    chosen = plan(problem, travelling(problem, schedule(problem, lambda i: True), lambda i: True))
    model, twin = copy.deepcopy(model), copy.deepcopy(model)
    step = apply(chosen, model, loss, backend="eager")
    other = tuple(x.flip(0) for x in inputs)
    values = [step(*inputs), step(*other)]
    for value in values:
        value.backward()
    for batch in (inputs, other):
        twin(*batch).backward()
    for p, p0 in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p.grad, p0.grad, rtol=1e-12, atol=1e-14)


class Stream:
    """What a copy on a CUDA device waits with."""

    def __init__(self):
        self.waited = []

    def wait_event(self, event):
        assert transfers._sends or transfers._fetches  # waits first: what is forgotten may be freed
        self.waited.append(event)


def test_the_next_step_frees_what_a_pass_given_up_holds_whether_or_not_it_offloads(captured):
    model, inputs, loss, problem = captured["mlp"]
    step = apply(plan(problem, schedule(problem, lambda i: True)), copy.deepcopy(model), loss, backend="eager")
    for gradients_too in (True, False):
        held = [torch.empty(4), torch.empty(4)]
        gone, stream = [weakref.ref(t) for t in held], Stream()
        transfers._sends[1] = transfers._Copy("sent", stream, (held[0],))
        transfers._fetches[2] = transfers._Copy("fetched", stream, (held[1],))
        del held
        with torch.set_grad_enabled(gradients_too):
            step(*inputs)
        assert stream.waited == ["sent", "fetched"]
        assert [t() for t in gone] == [None, None]


def test_journeys_that_cannot_be_made(captured):
    model, inputs, loss, problem = captured["mlp"]
    good = travelling(problem, schedule(problem, lambda i: True), lambda i: True, lambda i: 1, lambda i: 1)
    first, last, soonest = good.offload[0], good.offload[-1], good.gone_before[0]
    stages = list(good.stages)
    arrival = next(t for t, s in enumerate(stages) if s.fetches)
    late = [*stages[:arrival], replace(stages[arrival], fetches=(Fetch(last, arrival + 1),)), *stages[arrival + 1 :]]
    unsent = next(f.id for f in problem.forward if f.id not in good.offload)
    stranger = [*stages[:arrival], replace(stages[arrival], fetches=(Fetch(unsent, 1),)), *stages[arrival + 1 :]]
    wrong = {
        "sends results twice": replace(good, offload=(first, first), gone_before=()),
        "that are kept": replace(good, stages=(replace(stages[0], keep=(first,)), *stages[1:])),
        "is not one for each": replace(good, gone_before=good.gone_before[:-1]),
        "gone before they are read": replace(good, gone_before=(0,) * len(good.offload)),
        "waited for before it is sent": replace(
            good, offload=good.offload[::-1], gone_before=(*(len(problem.forward) for _ in good.offload[1:]), soonest)
        ),
        "issued at stage": replace(good, stages=tuple(late)),
        f"fetches forward {unsent}": replace(good, stages=tuple(stranger)),
        "neither stored nor computed": replace(good, stages=tuple(replace(s, fetches=()) for s in stages)),
    }
    for message, schedule_ in wrong.items():
        with pytest.raises(InputError, match=message):
            gradients(model, inputs, loss, plan(problem, schedule_))
