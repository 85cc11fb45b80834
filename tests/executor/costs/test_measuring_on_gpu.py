"""Measuring on a CUDA device, where a kernel that gets what it does not expect ends the process."""

from __future__ import annotations

import pytest
import torch

from loadmaster.executor import capture
from loadmaster.executor.costs import profiled
from loadmaster.executor.costs.profiled import Profiler
from tests.executor.costs.deadly_operators import asserting, deadly, fine
from tests.executor.costs.fake_calls import call, t
from tests.executor.costs.test_made_up_models import Everything, Pooled

pytestmark = pytest.mark.gpu


def works() -> bool:
    """Whether kernels still run in this process."""
    return torch.ones(3, device="cuda").sum().item() == 3


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_positions_are_in_range(backend):
    device = torch.device("cuda")
    tokens = torch.randint(50, (256, 77), device=device)
    assert capture(Pooled().to(device), (tokens,), backend=backend, costs=profiled(device, 20.0)).forward
    picks = torch.randint(5, (256, 5), device=device)
    batch = torch.randint(11, (256, 5), device=device), picks, picks > 2
    assert capture(Everything().to(device), batch, backend=backend, costs=profiled(device, 20.0)).forward
    assert works()


class DroppingAttention(torch.nn.Module):
    """Attention of each of PyTorch's kernels for it, with dropout; its backward pass is given the seed of the mask."""

    def __init__(self, dtype):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.eye(32, dtype=dtype))

    def forward(self, x):
        x = x @ self.weight
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.1).float().mean()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_seed_of_attention_lies_where_its_kernel_reads_it(dtype):
    device = torch.device("cuda")
    x = torch.randn(4, 2, 64, 32, device=device, dtype=dtype)
    assert capture(DroppingAttention(dtype).to(device), (x,), costs=profiled(device, 20.0)).forward
    assert works()


def test_operators_of_others_end_another_process():
    x = t(7, 5)
    nodes = [call(fine._opoverload, x, 2), call(asserting._opoverload, x), call(deadly._opoverload, x)]
    nodes.append(call(fine._opoverload, x, 3))
    profiler = Profiler(torch.device("cuda"), 60.0)
    assert [profiler._measure(node) is not None for node in nodes] == [True, False, False, True]
    assert works()
