"""Every strategy of the library, on PyTorch's own kernels: what was found from descriptions is run on shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from loadmaster.executor.partition.trials import holds
from loadmaster.models.partition.problem import Signature
from loadmaster.models.partition.tdl import operators


def t(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def gradients(of: Callable[..., Any], inputs: Sequence[int], given: Tensor, *args: Tensor) -> tuple[Tensor, ...]:
    """Gradients of some of the arguments."""
    leaves = [a.detach().requires_grad_(n in inputs) for n, a in enumerate(args)]
    return torch.autograd.grad(of(*leaves), [leaves[n] for n in inputs], given)


def convolved(stride: int) -> Callable[..., Tensor]:
    return partial(functional.conv2d, stride=stride, padding=1)


def data_gradient(stride: int, g: Tensor, w: Tensor) -> Tensor:
    shape = (g.shape[0], w.shape[1], g.shape[2] * stride, g.shape[3] * stride)
    return torch.nn.grad.conv2d_input(shape, w, g, stride=stride, padding=1)


def filter_gradient(stride: int, g: Tensor, x: Tensor) -> Tensor:
    return torch.nn.grad.conv2d_weight(x, (g.shape[1], x.shape[1], 3, 3), g, stride=stride, padding=1)


def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Grouped queries [b, h, g, s, d], causal."""
    spread = [x.unsqueeze(2).expand(q.shape) for x in (k, v)]
    return functional.scaled_dot_product_attention(q, *spread, is_causal=True)


def lstm(z: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    i, f, g, o = z.unbind(1)
    cell = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


def lstm_gradient(gh: Tensor, gc: Tensor, z: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    leaves = [x.detach().requires_grad_() for x in (z, c)]
    return torch.autograd.grad(lstm(*leaves), leaves, (gh, gc))


def normed(x: Tensor, w: Tensor) -> Tensor:
    return functional.rms_norm(x, x.shape[-1:], w)


def looked_up(w: Tensor, ids: Tensor) -> Tensor:
    return functional.embedding(ids, w)


def lookup_gradient(g: Tensor, ids: Tensor) -> Tensor:
    return torch.zeros(8, g.shape[-1], dtype=g.dtype).index_add_(0, ids.flatten(), g.flatten(0, 1))


IDS = torch.tensor([[0, 5, 3, 1, 2, 2]] * 6)
LABELS = torch.tensor([0, 5, 3, 1, 2, 2])
summed = partial(functional.cross_entropy, reduction="sum")


def row_loss(x: Tensor, y: Tensor) -> Tensor:
    return summed(x.flatten(0, 1), y.flatten())


def loss_gradient(of: Callable[..., Tensor], x: Tensor, y: Tensor) -> Tensor:
    leaf = x.detach().requires_grad_()
    return torch.autograd.grad(of(leaf, y), leaf)[0]


IMAGE, FILTERS = t(6, 6, 4, 4), t(12, 6, 3, 3)
QUERIES, KEYS, VALUES = t(6, 6, 2, 5, 4), t(6, 6, 5, 4), t(6, 6, 5, 4) * 2

CASES: list[tuple[Signature, Callable[..., Any], tuple[Tensor, ...]]] = [
    (operators.product("mk,kn->mn"), torch.mm, (t(6, 12), t(12, 18))),
    (operators.product("bsk,khd->bhsd"), partial(torch.einsum, "bsk,khd->bhsd"), (t(6, 6, 6), t(6, 6, 12))),
    (operators.product("nc,ck->nk"), torch.matmul, (t(6, 6), t(6, 6))),
    (operators.elementwise(2, 2), lambda a, b: torch.tanh(a * b), (t(6, 12), t(6, 12))),
    (operators.elementwise(1, 3), torch.relu, (t(6, 6, 12),)),
    *(
        case
        for stride in (1, 2)
        for case in (
            (operators.conv2d(stride, 1, 3), convolved(stride), (IMAGE, FILTERS)),
            (operators.conv2d_input_gradient(stride, 1, 3), partial(data_gradient, stride), (t(6, 12, 4, 4), FILTERS)),
            (
                operators.conv2d_weight_gradient(stride, 1, 3),
                partial(filter_gradient, stride),
                (t(6, 12, 4 // stride, 4 // stride), IMAGE),
            ),
        )
    ),
    (operators.MAX_POOL, partial(functional.max_pool2d, kernel_size=2), (IMAGE,)),
    (
        operators.MAX_POOL_GRADIENT,
        lambda g, a: gradients(partial(functional.max_pool2d, kernel_size=2), (0,), g, a)[0],
        (t(6, 6, 2, 2), IMAGE),
    ),
    (operators.MEAN_POOL, lambda a: a.mean((2, 3)), (IMAGE,)),
    (operators.MEAN_POOL_GRADIENT, lambda g: g[:, :, None, None].expand(-1, -1, 4, 4) / 16, (t(6, 6),)),
    (operators.CROSS_ENTROPY, summed, (t(6, 8), LABELS)),
    (operators.CROSS_ENTROPY_GRADIENT, partial(loss_gradient, summed), (t(6, 8), LABELS)),
    (operators.ROW_LOSS, row_loss, (t(6, 6, 8), IDS)),
    (operators.ROW_LOSS_GRADIENT, partial(loss_gradient, row_loss), (t(6, 6, 8), IDS)),
    (operators.EMBEDDING, looked_up, (t(8, 12), IDS)),
    (operators.EMBEDDING_GRADIENT, lookup_gradient, (t(6, 6, 12), IDS)),
    (operators.LSTM_GATES, lstm, (t(6, 4, 12), t(6, 12))),
    (operators.LSTM_GATES_GRADIENT, lstm_gradient, (t(6, 12), t(6, 12) * 2, t(6, 4, 12), t(6, 12) * 3)),
    (operators.NORM, normed, (t(6, 6, 12), t(12))),
    (operators.NORM_GRADIENT, partial(gradients, normed, (0, 1)), (t(6, 6, 12), t(6, 6, 12) * 2, t(12))),
    (operators.ATTENTION, attended, (QUERIES, KEYS, VALUES)),
    (operators.ATTENTION_GRADIENT, partial(gradients, attended, (0, 1, 2)), (QUERIES * 2, QUERIES, KEYS, VALUES)),
]


@pytest.mark.parametrize(("signature", "kernel", "args"), CASES, ids=[case[0].name for case in CASES])
def test_what_was_found_holds(signature: Signature, kernel: Callable[..., Any], args: tuple[Tensor, ...]) -> None:
    assert signature.strategies
    for strategy in signature.strategies:
        assert holds(kernel, args, {}, strategy), strategy


def test_batch_norm_over_channels_holds_and_over_the_batch_is_each_workers_own() -> None:
    """What the table says of the batch is a choice, not a fact: statistics of each share."""
    args = (IMAGE, t(6), t(6) * 2)

    def batch_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return functional.batch_norm(x, None, None, w, b, training=True)

    held = {s.name: holds(batch_norm, args, {}, s) for s in operators.BATCH_NORM.strategies}
    assert held == {"n": False, "c": True}

    def gradient(g: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        shift = torch.zeros_like(w, requires_grad=True)
        leaves = [x.detach().requires_grad_(), w.detach().requires_grad_(), shift]
        return torch.autograd.grad(batch_norm(*leaves), leaves, g)

    held = {s.name: holds(gradient, (IMAGE * 2, *args[:2]), {}, s) for s in operators.BATCH_NORM_GRADIENT.strategies}
    assert held == {"n": False, "c": True}
