"""A fitted step trains on the batches that a data loader gives, not only on one like the first."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from loadmaster.executor import fit
from loadmaster.executor.memory.run.apply import PlannedStep
from tests.executor.memory.hand_planner import HandPlanner
from tests.executor.memory.models import convnet_case

pytestmark = pytest.mark.slow


def fitted_step():
    model, (x, target), loss = convnet_case(batch=22, size=32, channels=16, blocks=2)
    loader = DataLoader(TensorDataset(x, target), batch_size=8)
    fitted = fit(
        model,
        tuple(next(iter(loader))),
        loss,
        budget_bytes="90%",
        planner=HandPlanner(step=1),
        backend="eager",
        repeats=1,
        tries=1,
    )
    assert isinstance(fitted.step, PlannedStep)
    return fitted.step, model, loss, loader


def train(step, model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, target in batches:
        step(x, target).backward()
        optimizer.step()
        optimizer.zero_grad()


def test_the_loop_of_the_readme_ends_its_epochs_with_a_short_batch():
    step, model, loss, loader = fitted_step()
    twin = copy.deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            train(step, model, loader)
    for _ in range(2):
        train(lambda x, target: loss(twin(x), target), twin, loader)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_a_larger_batch_runs_as_torch_compile_would_run_it_and_says_so():
    step, model, loss, loader = fitted_step()
    twin = copy.deepcopy(model)
    whole = loader.dataset.tensors
    with pytest.warns(UserWarning, match=r"without a plan and its budget.*is \(22, .*planned for \(8, "):
        train(step, model, [whole])
    train(lambda x, target: loss(twin(x), target), twin, [whole])
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q)
