"""A planned model is saved and loaded as PyTorch's own functions do it, copied, and kept apart from its copies."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_state_dict,
)

from loadmaster.errors import InputError
from loadmaster.models.training.ways import TRAINED, Way
from tests.executor.training.planned_nets import HOST_UPDATED, RESIDENT, STATE_AWAY, STREAMED, Net
from tests.executor.training.side_by_side import EACH_WAY, Both, adamw, trained_equally


@pytest.mark.parametrize("together", [False, True])
def test_training_resumes_from_a_distributed_checkpoint(together: bool, tmp_path: Path) -> None:
    both = Both(*TRAINED, max_norm=0.3)
    both.step()
    if together:
        weights, state = get_state_dict(both.model, both.optimizer)
    else:
        weights, state = both.model.state_dict(), get_optimizer_state_dict(both.model, both.optimizer)
    expected, expected_state = get_state_dict(both.plain, both.plain_optimizer)
    assert weights.keys() == expected.keys()
    assert state["state"].keys() == expected_state["state"].keys()
    for name, values in expected_state["state"].items():
        torch.testing.assert_close(state["state"][name], values)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=tmp_path, no_dist=True)
    trained_equally(both)  # what was asked goes on as it was
    both = Both(RESIDENT, max_norm=0.3)
    both.step()
    both.planned.release()
    torch.manual_seed(7)
    both.model = Net()
    both.optimizer = adamw(both.model)
    weights, state = get_state_dict(both.model, both.optimizer)
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id=tmp_path, no_dist=True)
    set_state_dict(both.model, both.optimizer, model_state_dict=weights, optim_state_dict=state)
    both.optimizer.zero_grad()
    both.planned = both.plan(HOST_UPDATED, STREAMED)
    trained_equally(both)


def test_a_distributed_checkpoint_before_any_step_changes_nothing() -> None:
    both = Both(*TRAINED)
    get_optimizer_state_dict(both.model, both.optimizer)
    get_model_state_dict(both.model)
    trained_equally(both)


@EACH_WAY
def test_a_part_of_a_model_saves_whole(ways: tuple[Way, ...]) -> None:
    both = Both(*ways, max_norm=0.3)
    both.step()
    for name, value in both.plain.blocks.state_dict().items():
        torch.testing.assert_close(both.model.blocks.state_dict()[name], value)
    outer = torch.nn.ModuleDict({"inner": both.model}).state_dict()
    for name, value in both.plain.state_dict().items():
        torch.testing.assert_close(outer[f"inner.{name}"], value)
    torch.testing.assert_close(
        both.model.blocks[1].up.state_dict()["weight"], both.plain.blocks[1].up.state_dict()["weight"]
    )


@pytest.mark.parametrize("use", [copy.deepcopy, lambda model: torch.save(model, io.BytesIO())])
@pytest.mark.parametrize("way", [RESIDENT, STREAMED], ids=lambda way: way.name)
def test_a_planned_model_says_why_it_cannot_be_copied(way: Way, use: Callable[[Net], object]) -> None:
    both = Both(way)
    both.step()
    with pytest.raises(InputError, match=r"state_dict\(\), or release"):
        use(both.model)
    trained_equally(both)
    both.planned.release()
    use(both.model)


@pytest.mark.parametrize("use", [copy.deepcopy, pickle.dumps, lambda optimizer: torch.save(optimizer, io.BytesIO())])
@pytest.mark.parametrize("way", [RESIDENT, STATE_AWAY], ids=lambda way: way.name)
def test_a_planned_optimizer_says_why_it_cannot_be_copied(
    way: Way, use: Callable[[torch.optim.Optimizer], object]
) -> None:
    both = Both(way)
    both.step()
    with pytest.raises(InputError, match=r"state_dict\(\), or release"):
        use(both.optimizer)
    with pytest.raises(InputError, match=r"state_dict\(\), or release"):
        _ = both.optimizer.state[both.model.norm.weight]["exp_avg"]
    trained_equally(both)
    both.planned.release()
    found = copy.deepcopy(both.optimizer).state_dict()["state"]
    for number, state in both.plain_optimizer.state_dict()["state"].items():
        torch.testing.assert_close(found[number], state, rtol=1e-4, atol=1e-6)


def test_a_distributed_checkpoint_before_any_step_is_loaded_as_plain_pytorch_s(tmp_path: Path) -> None:
    both = Both(*TRAINED)
    get_state_dict(both.plain, both.plain_optimizer)  # which makes a step with gradients of zero
    weights, state = get_state_dict(both.model, both.optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=tmp_path, no_dist=True)
    both.planned.release()
    torch.manual_seed(7)
    both.model = Net()
    both.optimizer = adamw(both.model)
    weights, state = get_state_dict(both.model, both.optimizer)
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id=tmp_path, no_dist=True)
    set_state_dict(both.model, both.optimizer, model_state_dict=weights, optim_state_dict=state)
    both.planned = both.plan(HOST_UPDATED, STREAMED)
    trained_equally(both)
