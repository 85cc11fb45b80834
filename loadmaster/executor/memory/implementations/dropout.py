"""Dropout replayed from its seed: the mask is a function of a 64-bit seed and the element's index, so none is kept.

The seed is drawn once, in the forward pass, from the device's own generator (``torch.manual_seed`` decides it).
Forward, recomputation and backward are one operator, since dropout's backward is dropout of the gradient under the same
mask. The mask is the same on every device. Source of the generator: SplitMix64 [Steele14], whose i-th output needs no
state but the seed.
"""

from __future__ import annotations

import operator

import torch
from torch import Tensor, fx

from loadmaster.executor.costs.limits import register_limits
from loadmaster.executor.costs.workspace import register_workspace
from loadmaster.executor.memory.implementations.emitting import aten, call
from loadmaster.executor.memory.implementations.kernels import (
    CHUNK,
    chunks,
    has_kernels,
    kernels,
    like_first,
    row_major_bytes,
)
from loadmaster.executor.steps.layouts import dense_bytes
from loadmaster.executor.steps.places import inherit
from loadmaster.executor.torch_private.operators import overload_of

GOLDEN = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
WORD = 32  # the upper half of the mixed word decides
SEED_LIMIT = 2**63 - 1


def _signed(word: int) -> int:
    return word - (1 << 64) if word >= 1 << 63 else word


def _unsigned_shift(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def scale_and_threshold(p: float) -> tuple[float, int]:
    """Factor of kept elements, and the 32-bit word from which on elements are kept (p to within 2**-33)."""
    return 0.0 if p == 1 else 1 / (1 - p), round(p * (1 << WORD))


def mixed(numbers: Tensor, seed: Tensor) -> Tensor:
    """The 32-bit words, as int64, that decide over elements number 1, 2, ... ([n] int64)."""
    # The constant comes through the seed: compilers fold a plain one into 32-bit index arithmetic.
    z = numbers * ((seed & 0) + _signed(GOLDEN)) + seed
    z = (z ^ _unsigned_shift(z, 30)) * _signed(MIX_1)
    z = (z ^ _unsigned_shift(z, 27)) * _signed(MIX_2)
    return _unsigned_shift(z ^ _unsigned_shift(z, 31), WORD)


def kept(seed: Tensor, elements: slice, p: float) -> Tensor:
    """Mask of the elements that dropout keeps, each with probability 1 - p: bool [stop - start]."""
    numbers = torch.arange(elements.start + 1, elements.stop + 1, dtype=torch.int64, device=seed.device)
    return mixed(numbers, seed) >= scale_and_threshold(p)[1]


@torch.library.custom_op("loadmaster::seeded_dropout", mutates_args=(), tags=(torch.Tag.flexible_layout,))
def seeded_dropout(x: Tensor, seed: Tensor, p: float) -> Tensor:
    """Dropout, ``x / (1 - p)`` times the mask, as PyTorch has it; the mask depends on seed, index and p alone. Returns
    a new tensor like ``x``, of any shape, whose elements are numbered in row-major order. ``seed`` is int64 [] on the
    same device; ``p`` is the probability of dropping an element, 0 <= p <= 1."""
    scale, threshold = scale_and_threshold(p)
    result: Tensor
    if has_kernels(x.device):
        result = kernels().seeded_dropout(x, seed, scale, threshold)
        return result
    result = x.clone(memory_format=torch.contiguous_format)
    flat = result.view(-1).mul_(scale)
    for part in chunks(x.numel()):
        flat[part].mul_(kept(seed, part, p))
    return result if x.is_contiguous() else torch.empty_like(x).copy_(result)


def _workspace(x: Tensor, *_: object) -> int:
    if has_kernels(x.device):
        return dense_bytes(x)
    return row_major_bytes(x) + min(x.numel(), CHUNK) * 5 * torch.int64.itemsize


seeded_dropout.register_fake(like_first)
register_workspace(overload_of(seeded_dropout), _workspace)
register_limits(overload_of(seeded_dropout), lambda _: {})  # any seed will do


def seed_dropout(graph: fx.Graph) -> None:
    """Replace every training dropout whose mask is only read by its own backward."""
    for node in list(graph.nodes):
        if node.target is aten.native_dropout.default and node.args[2] is True:
            _replace(graph, node)


def _replace(graph: fx.Graph, dropout: fx.Node) -> None:
    x, p = dropout.args[0], dropout.args[1]
    assert isinstance(x, fx.Node) and isinstance(p, int | float)
    results = [user for user in dropout.users if user.args[1] == 0]
    masks = [user for user in dropout.users if user.args[1] == 1]
    backwards = [user for mask in masks for user in mask.users]
    if any(user.target is not operator.getitem for user in dropout.users):
        return
    if any(user.target is not aten.native_dropout_backward.default for user in backwards):
        return
    value = x.meta["val"]
    with graph.inserting_before(dropout):
        seed = graph.call_function(
            aten.randint.low, (0, SEED_LIMIT, []), {"dtype": torch.int64, "device": value.device}
        )
        inherit(seed, dropout)
        seed.meta["val"] = value.new_empty((), dtype=torch.int64)
        forward = call(graph, overload_of(seeded_dropout), x, seed, float(p))
    for result in results:
        result.replace_all_uses_with(forward)
        graph.erase_node(result)
    for backward in backwards:
        with graph.inserting_before(backward):
            gradient = call(graph, overload_of(seeded_dropout), backward.args[0], seed, float(p))
        backward.replace_all_uses_with(gradient)
        graph.erase_node(backward)
    for mask in masks:
        graph.erase_node(mask)
    graph.erase_node(dropout)
