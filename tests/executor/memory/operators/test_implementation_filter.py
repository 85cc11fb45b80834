"""What is offered: it alone is chosen from, at capture and at apply alike, and steps stay right under any of it."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
import torch

from loadmaster import executor
from loadmaster.errors import InputError
from loadmaster.executor import ImplementationFilter, apply, capture
from loadmaster.executor.memory.implementations import registry
from loadmaster.executor.memory.operators.grouping import group
from tests.executor.memory.models import convnet_case
from tests.executor.memory.schedules import plan, schedule
from tests.executor.memory.tracing import trace

pytestmark = pytest.mark.slow  # most of its tests trace and run a model

EVERY_NAME = tuple(a.name for a in registry.alternatives())
NOTHING = ImplementationFilter(exclude=EVERY_NAME, inline=False)


def offered(implementations: ImplementationFilter, *, fused: bool) -> tuple[dict[str, int], bool]:
    """How often each alternative is offered, and whether anything is computed inside backward operators."""
    model, inputs, loss = convnet_case()
    choices = [c for b in group(trace(model, inputs, loss), implementations, fused=fused).backward for c in b.choices]
    sites = {(c.alternative.name, c.site.backward) for c in choices if c.alternative}
    return dict(Counter(name for name, _ in sites)), any(c.inlined for c in choices)


def test_nothing_is_offered_where_all_is_left_out():
    assert offered(NOTHING, fused=True) == ({}, False)
    assert offered(NOTHING, fused=False) == ({}, False)


def test_one_is_left_out_and_the_others_stay():
    everything, _ = offered(ImplementationFilter(), fused=False)
    assert "relu_mask" in everything
    del everything["relu_mask"]
    assert offered(ImplementationFilter(exclude=("relu_mask",)), fused=False)[0] == everything


def test_what_would_be_computed_inside_is_offered_as_an_alternative_where_nothing_is():
    counts, inlined = offered(ImplementationFilter(), fused=True)
    assert inlined and counts["relu_input"] == 1  # the stem's ReLU reads a convolution, which nothing fuses with
    counts, inlined = offered(ImplementationFilter(inline=False), fused=True)
    assert not inlined and counts["relu_input"] == 5


@pytest.mark.parametrize(
    "implementations", [NOTHING, ImplementationFilter(inline=False)], ids=["nothing", "no inlining"]
)
def test_a_plan_runs_under_its_filter_alone(implementations):
    model, inputs, loss = convnet_case()
    problem = capture(model, inputs, loss, hardware="cpu", backend="inductor", implementations=implementations)
    last = [len(b.implementations) - 1 for b in problem.backward]
    made = plan(problem, schedule(problem, lambda i: i % 3 == 0, lambda k: last[k - 1]))
    reference = copy.deepcopy(model)
    expected = loss(reference(*inputs[:-1]), inputs[-1])
    expected.backward()
    step = apply(made, model, loss, backend="eager", implementations=implementations)
    for tried in (step, copy.deepcopy(step)):
        torch.testing.assert_close(tried(*inputs).detach(), expected.detach())
    step(*inputs).backward()
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    with pytest.raises(InputError, match="was made for the graph"):
        apply(made, model, loss, backend="eager")(*inputs)


def test_an_unknown_name_is_refused():
    model, inputs, loss = convnet_case()
    with pytest.raises(InputError, match="nonsense"):
        capture(model, inputs, loss, hardware="cpu", implementations=ImplementationFilter(exclude=("nonsense",)))


def test_old_names_work_with_a_warning():
    with pytest.warns(DeprecationWarning, match="ImplementationFilter"):
        assert executor.Offer is ImplementationFilter
    model, inputs, loss = convnet_case()
    with pytest.warns(DeprecationWarning, match=r"capture\(implementations=\.\.\.\)"):
        old = capture(model, inputs, loss, hardware="cpu", offer=ImplementationFilter(inline=False))
    new = capture(model, inputs, loss, hardware="cpu", implementations=ImplementationFilter(inline=False))
    assert old.sha256 == new.sha256
