"""Copies in autocast's format stand for a cast that plain PyTorch makes, and are not read where it makes none."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.models.training.ways import Way
from tests.executor.training.planned_nets import BOTH_AWAY, RESIDENT, STREAMED
from tests.executor.training.side_by_side import Both, trained_equally


@pytest.mark.parametrize("way", [STREAMED, BOTH_AWAY], ids=lambda way: way.name)
@pytest.mark.parametrize("dtype", [None, torch.float16])
@pytest.mark.parametrize("grad", [True, False], ids=["step", "evaluation"])
def test_copies_are_not_read_without_their_cast(way: Way, dtype: torch.dtype | None, grad: bool) -> None:
    both = Both(way, autocast=torch.bfloat16)
    both.step()
    call: Callable[[Tensor], Tensor] = both.planned if grad else both.model
    with (
        torch.set_grad_enabled(grad),
        torch.autocast("cpu", dtype, enabled=dtype is not None),
        pytest.raises(InputError, match=r"torch\.bfloat16.*Linear"),
    ):
        call(both.batches[0])
    trained_equally(both)


class Apart(torch.nn.Module):
    """A module that turns autocast off around another one."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return self.inner(x.to(self.inner.weight.dtype)).to(x.dtype)


@pytest.mark.parametrize(("way", "refused"), [(RESIDENT, False), (STREAMED, True)])
def test_a_model_that_turns_autocast_off(way: Way, refused: bool) -> None:
    both = Both(way, autocast=torch.bfloat16)
    both.planned.release()
    for model in (both.plain, both.model):
        model.blocks[1].up = Apart(model.blocks[1].up)  # type: ignore[assignment]
    both.planned = both.plan(way)
    if refused:
        before = copy.deepcopy(both.model.state_dict())
        with pytest.raises(InputError, match="turns it off"), both.cast():
            both.planned(both.batches[0])
        torch.testing.assert_close(both.model.state_dict(), before)
        both.planned.release()
        both.autocast = None  # copies as fit makes them outside of autocast
        both.planned = both.plan(way)
        both.autocast = torch.bfloat16
    trained_equally(both)
