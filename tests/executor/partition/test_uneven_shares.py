"""A share along an axis of unequal ones in a ``DTensor``: elementwise operators and norms run, others are refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_gather_tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from loadmaster.errors import InputError
from loadmaster.executor.partition.shares import UnevenShare
from tests.executor.worlds import join_alone

WHOLE, OFFSETS = torch.Size((8, 4)), torch.Size((2, 0))


def share(values: Tensor) -> DTensor:
    """Rows 2 to 7 of eight."""
    mesh = init_device_mesh("cpu", (1,))
    own = UnevenShare(values, OFFSETS, WHOLE)
    return DTensor.from_local(own, mesh, [Shard(0)], run_check=False, shape=WHOLE, stride=(4, 1))


def held(value: Tensor) -> UnevenShare:
    assert isinstance(value, DTensor) and isinstance(value._local_tensor, UnevenShare)
    return value._local_tensor


@pytest.fixture
def alone() -> Iterator[None]:
    """A group of this process alone, while a test runs."""
    join_alone()
    yield
    dist.destroy_process_group()


@pytest.mark.slow
def test_an_update_runs_on_what_a_rank_has_and_the_rest_is_refused(alone: None) -> None:
    values = torch.randn(6, 4, dtype=torch.float64)
    own, plain = nn.Parameter(share(values.clone())), nn.Parameter(values.clone())
    for settings in ({"fused": True}, {"foreach": True}, {"foreach": False}):
        optimizers = [torch.optim.AdamW([p], lr=0.1, **settings) for p in (own, plain)]
        for step in range(2):
            gradient = torch.full_like(values, step + 1.0)
            own.grad, plain.grad = share(gradient.clone()), gradient.clone()
            norms = [float(torch.nn.utils.clip_grad_norm_([p], 0.5)) for p in (own, plain)]
            assert norms[0] == pytest.approx(norms[1], rel=1e-12)
            for optimizer in optimizers:
                optimizer.step()
        torch.testing.assert_close(held(own).own, plain.detach(), rtol=1e-12, atol=1e-12)
        moment = held(optimizers[0].state[own]["exp_avg"])
        (chunk,) = moment.__create_chunk_list__()
        assert (chunk.offsets, chunk.sizes, moment.whole) == (OFFSETS, values.shape, WHOLE)
    for needs_the_whole in (
        lambda: all_gather_tensor(held(own), 0, dist.group.WORLD),
        lambda: own.detach() @ own.detach().T,
        lambda: own.detach().norm(dim=1),
        lambda: own.detach().mean(),
        lambda: own.detach().view(-1),
    ):
        with pytest.raises(InputError, match=r"unequal shares.*step\.state_dict\(\)"):
            needs_the_whole()
