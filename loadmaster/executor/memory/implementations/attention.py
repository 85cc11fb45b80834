"""Attention with dropout that can be computed again: the seed of its kernels is drawn first and kept.

PyTorch's fused attention kernels draw their dropout from the device's generator and tell the backward pass where they
stood in it, but nobody else can have the same mask: such a forward could never be recomputed. Here the generator is set
to a seed of the layer's own while the kernel runs, and put back afterwards. The seed comes from the CPU's generator
(``torch.manual_seed`` decides it), so that nothing waits for the device. The kernels, forward and backward, are
PyTorch's own.

All fused kernels hold equally little memory, so that the choice between them is one of time alone, made where PyTorch
makes it: ``torch.nn.attention.sdpa_kernel`` around capture and around the training step decides it for both.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils.flop_counter import register_flop_formula

from loadmaster.executor.costs.limits import register_limits
from loadmaster.executor.costs.traffic import attention_flop
from loadmaster.executor.memory.implementations.dropout import SEED_LIMIT
from loadmaster.executor.memory.implementations.emitting import aten, call
from loadmaster.executor.torch_private.operators import OpOverload, overload_of


@dataclass(frozen=True)
class Kernel:
    """A fused kernel's operators, and the places of output, logsumexp, Philox seed and offset among the forward's
    results, and of ``dropout`` and ``causal`` among its arguments; with ``bias`` the fourth argument is one."""

    forward: OpOverload
    results: tuple[int, int, int, int]
    dropout: int
    causal: int
    bias: bool


KERNELS = {
    "flash": Kernel(aten._scaled_dot_product_flash_attention.default, (0, 1, 6, 7), 3, 4, False),
    "efficient": Kernel(aten._scaled_dot_product_efficient_attention.default, (0, 1, 2, 3), 5, 6, True),
    "cudnn": Kernel(aten._scaled_dot_product_cudnn_attention.default, (0, 1, 6, 7), 5, 6, True),
}


@torch.library.custom_op("loadmaster::draw_seed", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def draw_seed(reader: Tensor) -> Tensor:
    """A seed from the CPU's generator: int64 [] on the CPU. The argument only says who asks."""
    return torch.randint(0, SEED_LIMIT, ())


@draw_seed.register_fake
def _(reader: Tensor) -> Tensor:
    return torch.empty((), dtype=torch.int64)


@torch.library.custom_op("loadmaster::seeded_attention", mutates_args=())
def seeded_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    seed: Tensor,
    dropout: float,
    causal: bool,
    scale: float | None,
    kernel: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Fused attention whose dropout is a function of the seed.

    Args:
        query, key, value: [batch, heads, tokens, width] on a CUDA device.
        bias: added to the scores, or None; not for "flash".
        seed: int64 [] on the CPU.
        kernel: a name in :data:`KERNELS`.

    Returns:
        Output, logsumexp, Philox seed and offset, as the kernel's own backward wants them.
    """
    generator = torch.cuda.default_generators[query.device.index]
    before = generator.get_state()
    generator.manual_seed(int(seed))
    try:
        return _attend((query, key, value), bias, seed, dropout, causal, scale, kernel)
    finally:
        generator.set_state(before)


def _attend(
    operands: Sequence[Tensor],
    bias: Tensor | None,
    _seed: Tensor,
    dropout: float,
    causal: bool,
    scale: float | None,
    kernel: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    chosen = KERNELS[kernel]
    options = (bias, True, dropout, causal) if chosen.bias else (dropout, causal)
    results = chosen.forward(*operands, *options, scale=scale)
    output, logsumexp, philox_seed, philox_offset = (results[i] for i in chosen.results)
    return output, logsumexp, philox_seed, philox_offset


@seeded_attention.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, *options: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _attend((query, key, value), bias, *options)


@register_flop_formula(torch.ops.loadmaster.seeded_attention)
def _(query: Sequence[int], key: Sequence[int], value: Sequence[int], *_args: object, **_kwargs: object) -> int:
    return attention_flop(query, key, value)


register_limits(overload_of(seeded_attention), lambda _: {})  # any seed will do


def seed_attention(graph: fx.Graph) -> None:
    """Replace every fused attention with dropout, if only its own backward reads results other than the output."""
    by_forward = {kernel.forward: name for name, kernel in KERNELS.items()}
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target in by_forward:
            _replace(graph, node, by_forward[node.target])


def _replace(graph: fx.Graph, node: fx.Node, name: str) -> None:
    kernel = KERNELS[name]
    dropout = node.args[kernel.dropout] if len(node.args) > kernel.dropout else 0.0
    results = {user.args[1]: user for user in node.users if user.target is operator.getitem}
    # A plain number or nothing stands in for every result that is not a tensor; the masks of debugging are not kept.
    plain = {i: user.meta["val"] for i, user in results.items() if not isinstance(user.meta["val"], Tensor)}
    unknown = [i for i in results if i not in kernel.results and i not in plain and results[i].users]
    if not dropout or unknown or len(results) != len(node.users):
        return
    query, key, value = node.args[:3]
    assert isinstance(query, fx.Node)
    bias = node.args[3] if kernel.bias else None
    causal = bool(node.args[kernel.causal]) if len(node.args) > kernel.causal else False
    scale = node.kwargs.get("scale")
    with graph.inserting_before(node):
        seed = call(graph, overload_of(draw_seed), query)
        arguments = (query, key, value, bias, seed, dropout, causal, scale, name)
        seeded = call(graph, overload_of(seeded_attention), *arguments)
        for new, old in enumerate(kernel.results):
            if old in results:
                results[old].replace_all_uses_with(call(graph, operator.getitem, seeded, new))
    constants = {results[i]: constant for i, constant in plain.items()}
    for user in {user for old in constants for user in old.users}:
        user.args = fx.node.map_arg(user.args, lambda n: constants.get(n, n))
    for gone in (*results.values(), node):
        graph.erase_node(gone)
