"""Between two steps a parameter shows the weights that updates change, or NaN: no read is stale, no write is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.models.training.ways import Way
from tests.executor.training.planned_nets import BOTH_AWAY, HOST_UPDATED, RESIDENT, STREAMED
from tests.executor.training.side_by_side import EACH_WAY, STEPS, Both, trained_equally


def shown(both: Both) -> dict[str, Tensor]:
    """Parameters that show something, as a loop that averages weights reads them."""
    return {name: p for name, p in both.model.named_parameters() if not torch.isnan(p).all()}


@EACH_WAY
def test_parameters_show_the_latest_weights_or_none(ways: tuple[Way, ...]) -> None:
    both = Both(*ways, autocast=torch.bfloat16)
    for _ in range(3):
        both.step()
        before, plain = shown(both), dict(both.plain.named_parameters())
        for name, p in before.items():
            torch.testing.assert_close(p, plain[name])
        both.model.state_dict()
        with torch.no_grad(), both.cast():
            both.model(both.batches[0])
        assert shown(both).keys() >= before.keys()
    both.expect_equal()


def _replace(p: Tensor) -> None:
    p.data = torch.zeros_like(p)


@pytest.mark.parametrize(
    "write", [lambda p: p.data.clamp_(-0.01, 0.01), lambda p: p.clamp_(-0.01, 0.01), Tensor.zero_, _replace]
)
@pytest.mark.parametrize("way", [RESIDENT, BOTH_AWAY, HOST_UPDATED, STREAMED], ids=lambda way: way.name)
def test_weights_that_a_loop_writes_are_not_lost(way: Way, write: Callable[[Tensor], Any]) -> None:
    both = Both(way)
    for _ in range(STEPS):
        both.step()
        try:
            with torch.no_grad():
                write(both.model.blocks[1].up.weight)
            both.planned(both.batches[0])
        except (RuntimeError, InputError) as error:
            assert "written" in str(error)
            break
        with torch.no_grad():
            write(both.plain.blocks[1].up.weight)
    else:
        assert way is RESIDENT
    both.expect_equal()
    trained_equally(both)


@EACH_WAY
def test_parts_of_a_model_run_by_themselves_with_the_latest_weights(ways: tuple[Way, ...]) -> None:
    both = Both(*ways)
    x = torch.randn(4, 8, 16)
    for _ in range(2):
        both.step()
        for plain, part in zip(both.plain.children(), both.model.children(), strict=True):
            for one, other in zip((plain, *plain.children()), (part, *part.children()), strict=True):
                if not isinstance(one, torch.nn.ModuleList | torch.nn.Embedding):
                    with torch.no_grad():
                        torch.testing.assert_close(other.eval()(x), one.eval()(x))
                    other.train(), one.train()
    trained_equally(both)
