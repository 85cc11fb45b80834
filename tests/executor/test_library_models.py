"""Models of transformers, timm, torchvision and diffusers as their documentation calls them, under a plan.

The whole list is measured by ``python -m benchmarks.memory_zoo``; these stand for the ways of calling.
"""

from __future__ import annotations

import copy

import pytest
import torch

import loadmaster
from loadmaster.executor import apply, capture
from loadmaster.models.memory import plain
from loadmaster.models.memory.minimum import minimum_budget
from tests.libraries import imported

# Of a parameter's gradient, relative and by norm, in float32.
TOLERANCE = 1e-4


def entry(name: str):
    """An entry of the zoo, where its library is installed."""
    return imported("benchmarks.zoo.entries", needs=name.partition("/")[0]).entry(name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "transformers/BertForSequenceClassification",  # a BatchEncoding, the loss inside the output
        "transformers/SegformerForSemanticSegmentation",  # hooks that are set in its first call
        "timm/vit_tiny_patch16_224",  # images and labels
        "torchvision/lraspp_mobilenet_v3_large",  # a dictionary of outputs
        "diffusers/AutoencoderKL",  # an output with .sample
    ],
)
def test_gradients_under_a_plan_are_those_of_the_documented_call(name):
    from benchmarks.zoo.measure import difference, gradients, plain_step

    model, batch, loss = entry(name).build()
    twin = copy.deepcopy(model)
    problem = capture(model, batch, loss, hardware="h200", backend="eager")
    least_bytes, most_bytes = minimum_budget(problem).budget_bytes, plain.peak_bytes(problem)
    budget_bytes = (least_bytes + most_bytes) // 2
    plan = loadmaster.plan(problem, budget_bytes=budget_bytes, gap=0.5, time_limit_s=60)
    assert plan.check["peak_bytes"] <= budget_bytes < most_bytes
    step = apply(plan, model, loss, backend="eager")
    call = (lambda: step(**batch)) if hasattr(batch, "keys") else lambda: step(*batch)
    value, ours = gradients(call, model)
    expected, theirs = gradients(plain_step(twin, batch, loss), twin)
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=0)
    assert difference(ours, theirs) <= TOLERANCE
