"""Planned steps wait for every move before they read, write or free what it moves."""

from __future__ import annotations

import random
from concurrent.futures import Future
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from loadmaster.executor.training import layers as layers_module
from loadmaster.executor.training import step as step_module
from loadmaster.executor.training.copies import HostMover
from loadmaster.executor.training.layers import ModelGroup
from loadmaster.executor.training.weights import HostWeights
from loadmaster.models.training.checker import check
from loadmaster.models.training.ways import TRAINED, Way
from tests.executor.training.late_mover import LateMover
from tests.executor.training.planned_nets import RESIDENT, STREAMED
from tests.executor.training.side_by_side import EACH_WAY, STEPS, Both, trained_equally
from tests.models.training.steps import schedules


def late(monkeypatch: pytest.MonkeyPatch, seed: int | None = None) -> LateMover:
    """Let steps move late."""
    mover = LateMover(None if seed is None else random.Random(seed))
    monkeypatch.setattr(step_module, "mover_of", lambda _: mover)
    return mover


@EACH_WAY
@pytest.mark.parametrize("options", [{}, {"max_norm": 0.3}, {"accumulate": 3}, {"autocast": torch.bfloat16}], ids=str)
def test_late_moves_change_nothing(
    monkeypatch: pytest.MonkeyPatch, ways: tuple[Way, ...], options: dict[str, Any]
) -> None:
    mover = late(monkeypatch)
    trained_equally(Both(*ways, **options))
    mover.end()
    assert mover.freed == []


@EACH_WAY
@pytest.mark.parametrize("max_norm", [None, 0.3])
def test_whoever_reads_moved_values_waits_for_them(
    monkeypatch: pytest.MonkeyPatch, ways: tuple[Way, ...], max_norm: float | None
) -> None:
    mover = late(monkeypatch)
    both = Both(*ways, max_norm=max_norm)
    for _ in range(STEPS):
        both.step()
        both.expect_equal()  # as saved after each step
    both.planned.release()
    for p, q in zip(both.model.parameters(), both.plain.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
    mover.end()
    assert mover.freed == []


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    seed=st.one_of(st.none(), st.integers(0, 99)),
    clips=st.booleans(),
    passes=st.integers(1, 2),
    has_parts=st.booleans(),
)
def test_every_legal_schedule_trains_as_plain_pytorch(
    data: st.DataObject, seed: int | None, clips: bool, passes: int, has_parts: bool
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        if has_parts:  # two groups for each block
            monkeypatch.setattr(layers_module, "PART_ELEMENTS", 500)
        mover = late(monkeypatch, seed)
        both = Both(RESIDENT, max_norm=0.3 if clips else None, accumulate=passes)
        problem = both.problem()
        schedule = data.draw(schedules(problem))
        assume(check(problem, schedule, 1 << 40).ok)
        both.planned.release()
        both.planned = both.under(problem, schedule)
        trained_equally(both)
        mover.end()
        assert mover.freed == []


def test_late_moves_end_before_another_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    mover = late(monkeypatch)
    both = Both(*TRAINED)
    both.step()
    both.planned.release()
    both.planned = both.plan(STREAMED)
    trained_equally(both)
    mover.end()
    assert mover.freed == []


def test_weights_that_are_dropped_leave_no_memory_whenever_their_update_ended() -> None:
    """A future keeps its callbacks, and so what they refer to."""
    of = ModelGroup("one", (1,), (nn.Parameter(torch.zeros(64)),), (False,), 0)
    weights = HostWeights(of, HostMover(), None, {})
    weights.updated = Future()
    weights.load()
    assert weights._memory is not None
    memory = StorageWeakRef(weights._memory.untyped_storage())
    weights.updated.set_result(None)
    weights.need()
    weights.drop()
    assert memory.expired()
