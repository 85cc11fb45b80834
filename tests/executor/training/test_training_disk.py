"""Optimizer state in files trains as plain PyTorch does, is saved whole, and says when a disk fills or dies."""

from __future__ import annotations

import copy
import errno
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from loadmaster.errors import InputError
from loadmaster.executor import fit
from loadmaster.executor.steps import spill_file
from loadmaster.executor.training import disk_rates, state_files
from loadmaster.executor.training.disk_rates import measured_disk
from loadmaster.executor.training.state_files import StateFiles
from loadmaster.executor.training.updates import SMALL_STATE_ELEMENTS
from loadmaster.executor.training.weights import InterruptedStepError
from loadmaster.models.training.problem import TrainingProblem
from loadmaster.models.training.ways import IN_FILES, TRAINED
from tests.executor.memory.hand_planner import HandPlanner
from tests.executor.training.planned_nets import Net, schedule_of
from tests.executor.training.side_by_side import STEPS, Both, MakeOptimizer, adamw, momentum, trained_equally
from tests.executor.training.whole_steps import on_the_cpu, plan_by_hand

COPIED, STREAMED = IN_FILES


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """States of tests are longer than a chunk."""
    monkeypatch.setattr(state_files, "CHUNK_BYTES", 4096)


def expect_the_same(both: Both) -> None:
    """Expect every bit of weights and state to be that of plain PyTorch."""
    for name, value in both.plain.state_dict().items():
        assert torch.equal(both.model.state_dict()[name], value), name
    expected = both.plain_optimizer.state_dict()["state"]
    found = both.optimizer.state_dict()["state"]
    assert found.keys() == expected.keys()
    for number, state in expected.items():
        for name, value in state.items():
            assert torch.equal(found[number][name], value), (number, name)


def fused(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW by the kernel that planned steps run, too."""
    return torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)


@pytest.mark.parametrize("buffers", [1, 2, 9])
@pytest.mark.parametrize("way", IN_FILES, ids=lambda way: way.name)
def test_every_bit_is_that_of_plain_pytorch(way: Any, buffers: int, tmp_path: Path) -> None:
    both = Both(way, make=fused, disk=tmp_path, disk_buffers=buffers)
    for _ in range(STEPS):
        plain, planned = both.step()
        assert planned == plain
    expect_the_same(both)
    both.planned.release()
    expect_the_same(both)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("make", [adamw, momentum])
@pytest.mark.parametrize("max_norm", [None, 0.3])
def test_beside_all_other_ways(make: MakeOptimizer, max_norm: float | None, tmp_path: Path) -> None:
    trained_equally(Both(*TRAINED, *IN_FILES, make=make, max_norm=max_norm, accumulate=2, disk=tmp_path))


def test_an_optimizer_that_begins_with_state_goes_on(tmp_path: Path) -> None:
    both = Both(COPIED, make=fused, disk=tmp_path)
    both.step()
    both.planned.release()
    # From files to memory, and from memory to files of another plan.
    both.planned = both.plan(TRAINED[2])
    both.step()
    both.planned.release()
    both.planned = both.plan(STREAMED, COPIED)
    both.step()
    expect_the_same(both)


def test_what_is_saved_is_what_was_trained_so_far(tmp_path: Path) -> None:
    both = Both(COPIED, make=fused, disk=tmp_path, disk_buffers=1)
    both.step()
    saved, expected = both.optimizer.state_dict(), copy.deepcopy(both.plain_optimizer.state_dict())
    torch.save(saved, tmp_path / "saved.pt")
    both.step()
    read = torch.load(tmp_path / "saved.pt")
    for number, state in expected["state"].items():
        for name in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(read["state"][number][name], state[name])
            if state[name].numel() > SMALL_STATE_ELEMENTS:  # smaller ones are the optimizer's own, as in plain PyTorch
                assert torch.equal(saved["state"][number][name], state[name])


def test_groups_without_a_gradient_are_left_out(tmp_path: Path) -> None:
    both = Both(COPIED, make=fused, disk=tmp_path, disk_buffers=1)
    both.step()
    for model in (both.plain, both.model):
        model.blocks[1].requires_grad_(requires_grad=False)
    both.step()
    both.step()
    for model in (both.plain, both.model):
        model.blocks[1].requires_grad_(requires_grad=True)
    both.step()
    expect_the_same(both)


class Disk:
    """A disk that dies: from the given write or read on, everything fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.writes, self.reads = 1 << 30, 1 << 30
        write, read = os.pwrite, os.preadv

        def pwrite(*arguments: Any) -> int:
            self.writes -= 1
            if self.writes < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write(*arguments)

        def preadv(*arguments: Any) -> int:
            self.reads -= 1
            if self.reads < 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return read(*arguments)

        monkeypatch.setattr(spill_file.os, "pwrite", pwrite)
        monkeypatch.setattr(spill_file.os, "preadv", preadv)


def test_a_disk_that_fills_amid_a_step_leaves_no_half_updated_model_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = Both(COPIED, make=fused, disk=tmp_path, disk_buffers=1)
    both.step()
    both.planned._actions.settle()
    Disk(monkeypatch).writes = 2
    with pytest.raises(InterruptedStepError, match="No space left on device") as caught:
        for _ in range(2):
            both.step()
    assert "Load the last checkpoint" in str(caught.value)
    for saved in (both.model.state_dict, both.optimizer.state_dict):
        with pytest.raises(InterruptedStepError):
            saved()
    with pytest.warns(RuntimeWarning, match="half-updated"):
        both.planned.release()


def test_a_disk_that_fills_after_the_last_update_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A buffer for each: no update of the step waits for a write of the same step.
    both = Both(COPIED, make=fused, disk=tmp_path, disk_buffers=9)
    both.step()
    both.planned._actions.settle()
    disk = Disk(monkeypatch)
    disk.writes = 0
    with pytest.raises(InterruptedStepError, match=r"The last step is whole: step.release\(\)"):
        both.step()  # says so in the loop's optimizer.step(), or else the next call does
        both.planned._actions.settle()
    with pytest.raises(InterruptedStepError, match="The last step is whole"):
        both.optimizer.state_dict()
    both.planned.release()
    expect_the_same(both)


def test_a_disk_that_dies_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = Both(COPIED, make=fused, disk=tmp_path, disk_buffers=1)
    both.step()
    both.planned._actions.settle()
    Disk(monkeypatch).reads = 0
    with pytest.raises(InputError, match="cannot be read back: Input/output error"):
        both.optimizer.state_dict()
    with pytest.warns(RuntimeWarning, match="released without its state"):
        both.planned.release()
    for name, value in both.plain.state_dict().items():
        assert torch.equal(both.model.state_dict()[name], value)


def test_a_disk_that_is_too_full_says_so_before_any_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(spill_file.os, "posix_fallocate", full)
    with pytest.raises(InputError, match="Free space there, or give another folder: fit") as caught:
        Both(COPIED, disk=tmp_path)
    assert caught.value.field == "disk"


@pytest.mark.parametrize(("folder", "says"), [(None, "is missing"), (Path("/nowhere/at/all"), "is no folder")])
def test_files_need_a_folder(folder: Path | None, says: str) -> None:
    with pytest.raises(InputError, match=says):
        state_files.expect_folder(folder)


def test_states_take_turns_in_buffers(tmp_path: Path) -> None:
    files = StateFiles(tmp_path, {3: 5000, 1: 12_288, 2: 1}, buffers=2)
    try:
        for round_ in range(3):
            # Not in their order, too, and one is left out.
            for group in ((3, 1, 2), (2, 3), (1, 2, 3))[round_]:
                state = files.take(group)[: {3: 5000, 1: 12_288, 2: 1}[group]]
                if round_:
                    assert (
                        int(state.min()) == int(state.max()) == 10 * group + {3: 1, 1: 0, 2: 1}[group] * (round_ - 1)
                    ), (round_, group)
                state.fill_(10 * group + round_)
                files.give_back(group)
        for group, size in {3: 5000, 1: 12_288, 2: 1}.items():
            assert files.copied(group).tolist() == size * [10 * group + 2]
    finally:
        files.close()


def test_a_disk_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_rates, "SAMPLE_BYTES", 50_000)
    found = measured_disk(tmp_path)
    assert found.to_gbps > 0 and found.from_gbps > 0 and found.capacity_bytes
    assert list(tmp_path.iterdir()) == []


def fitted_with(folder: Path | str | None, budget_bytes: int) -> tuple[Net, torch.optim.Optimizer, Any]:
    """A net that is fitted without compiling anything, by a planner that has all state in files if there may be any."""
    torch.manual_seed(0)
    model = Net()
    optimizer = fused(model)

    def planner(problem: Any) -> Any:
        if not isinstance(problem, TrainingProblem):
            return HandPlanner(step=1)(problem)
        assert problem.disk is not None
        return plan_by_hand(problem, schedule_of(problem, STREAMED))

    batch = (torch.zeros(4, 8, dtype=torch.long),)
    arguments: dict[str, Any] = {"optimizer": optimizer, "planner": planner, "budget_bytes": budget_bytes}
    return model, optimizer, fit(model, batch, **arguments, backend="eager", disk=folder)


def test_fit_keeps_state_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_the_cpu(monkeypatch)
    monkeypatch.setattr(disk_rates, "SAMPLE_BYTES", 50_000)
    model, optimizer, fitted = fitted_with(tmp_path, 50_000)
    assert fitted.plan.check["disk_bytes"] > 0
    plain, batch = Net(), torch.arange(32).reshape(4, 8)
    plain.load_state_dict(model.state_dict())
    plain_optimizer = fused(plain)
    for step in (fitted.step, plain):
        for _ in range(STEPS):
            torch.manual_seed(1)
            step(batch).backward()
            (optimizer if step is fitted.step else plain_optimizer).step()
            (optimizer if step is fitted.step else plain_optimizer).zero_grad()
    for name, value in plain.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name
    with pytest.raises(InputError, match="disk: is no folder"):
        fitted_with(tmp_path / "none", 50_000)


@pytest.mark.slow
def test_a_folder_is_of_no_use_to_activations_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    on_the_cpu(monkeypatch)
    with caplog.at_level(logging.WARNING):
        fitted_with(tmp_path, 1 << 40)
    assert "disk: not used, for activations alone are planned" in caplog.text
