"""Work of an operator: FLOPs, bytes read and written, whether it is only a view."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch.utils.flop_counter import flop_registry, register_flop_formula

from loadmaster.executor.torch_private.operators import OpOverload, pytree, schema_of

aten = torch.ops.aten


def defaults(names: str) -> frozenset[OpOverload]:
    """The default overloads of PyTorch's operators of these names, with spaces between them."""
    return frozenset(getattr(aten, name).default for name in names.split())


# Operators that read rows of their first argument by index: traffic is what they return, not the table.
GATHERS = defaults("embedding index_select gather nll_loss_forward") | {aten.index.Tensor, aten._unsafe_index.Tensor}

# Operators that write values into a copy of their first argument, by index.
SCATTERS = frozenset({aten.index_put.default, aten._unsafe_index_put.default})

# Formats whose additions Inductor leaves to the device's atomic ones, whatever the GPU.
ATOMIC = frozenset({torch.float64, torch.float32, torch.float16})

# Elements of the largest window of a pool whose reads Inductor unrolls; larger ones are measured as PyTorch runs them.
WINDOW_LIMIT = 25

# How much longer than one pass over inputs and results PyTorch's own kernels take, measured on an H200 with the
# ResNet-50 and GPT-2-medium of examples/ (float32, and bfloat16 autocast).
SLOWDOWN: dict[object, float] = {
    aten._native_batch_norm_legit_functional.default: 4.0,
    aten._native_batch_norm_legit.default: 4.0,
    aten.native_batch_norm.default: 4.0,
    aten.native_batch_norm_backward.default: 4.0,
    aten.native_layer_norm.default: 1.5,
    aten.native_layer_norm_backward.default: 2.3,
    aten.max_pool2d_with_indices.default: 2.0,
    aten.max_pool2d_with_indices_backward.default: 3.5,
    aten.stack.default: 3.5,
    aten.cat.default: 3.5,
    aten.clone.default: 2.0,
    aten._log_softmax.default: 1.5,
    aten._softmax.default: 1.5,
    aten._safe_softmax.default: 5.0,  # and looks for rows that see nothing; BERT-base
    aten.convolution_backward.default: 1.5,  # the gradient is read for either result; all networks of examples/
}

# Slowdown of both gradients of a depthwise convolution, measured with MobileNet-V2: 1.5 to 3.5.
GROUPED_BACKWARD = 2.2

# Operators that only describe a tensor, though their schema does not say that they return an alias.
FREE = frozenset({aten._unsafe_view.default, aten.empty.memory_format, aten.new_empty.default, operator.getitem})


def attention_flop(query: Sequence[int], key: Sequence[int], value: Sequence[int]) -> int:
    """FLOPs of attention: every query with every key and value. Shapes are [batch, heads, tokens, width]."""
    batch, heads, tokens, width = query
    return 2 * batch * heads * tokens * key[2] * (width + value[3])


# What the CPU runs for scaled_dot_product_attention has no formula in PyTorch. Its backward computes five products.
if aten._scaled_dot_product_flash_attention_for_cpu not in flop_registry:

    @register_flop_formula(aten._scaled_dot_product_flash_attention_for_cpu)
    def _(query: Sequence[int], key: Sequence[int], value: Sequence[int], *_args: object, **_kwargs: object) -> int:
        return attention_flop(query, key, value)

    @register_flop_formula(aten._scaled_dot_product_flash_attention_for_cpu_backward)
    def _(
        gradient: Sequence[int],
        query: Sequence[int],
        key: Sequence[int],
        value: Sequence[int],
        *_args: object,
        **_kwargs: object,
    ) -> int:
        return attention_flop(query, key, value) * 5 // 2


def is_free(node: fx.Node) -> bool:
    """Return whether no kernel runs: views, tuple elements, allocations, and nodes that call nothing."""
    if node.op != "call_function" or node.target in FREE:
        return True
    if not isinstance(node.target, OpOverload):
        return False
    returns = schema_of(node.target).returns
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def tensors(value: object) -> list[Tensor]:
    """The tensors in a node's (possibly nested) value."""
    return [t for t in pytree.tree_leaves(value) if isinstance(t, Tensor)]


def tensor_bytes(tensor: Tensor) -> int:
    """Distinct bytes that reading or writing the tensor touches: a broadcast dimension counts once."""
    sizes = (int(n) for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride != 0 or n == 0)
    return math.prod(sizes) * tensor.element_size()


def value_bytes(value: object) -> int:
    """Bytes of all tensors in the value."""
    return sum(tensor_bytes(t) for t in tensors(value))


def value_of(node: fx.Node) -> Any:
    """The node's fake result, None if it has none."""
    return node.meta.get("val")


def flops(node: fx.Node) -> int:
    """Multiplications and additions of matrix products, convolutions and attention; 0 for everything else. Formulas are
    those of ``torch.utils.flop_counter``; add one for an operator of your own with its ``register_flop_formula``."""
    formula = flop_registry.get(getattr(node.target, "overloadpacket", None))
    if formula is None:
        return 0
    args = fx.node.map_arg(node.args, value_of)
    kwargs = fx.node.map_arg(node.kwargs, value_of)
    if node.target is aten.convolution_backward.default:
        # The formula takes every filter for one over the channels of all groups where it counts the weight's gradient.
        *rest, mask = cast(tuple[Any, ...], args)
        parts = [(1, [mask[0], False, False]), (convolution_groups(node), [False, mask[1], False])]
        return sum(int(formula(*rest, only, out_val=value_of(node))) // share for share, only in parts)
    return int(formula(*args, **kwargs, out_val=value_of(node)))


def convolution_groups(node: fx.Node) -> int:
    """Number of groups of a convolution or of its backward."""
    groups: Any = node.args[-2 if node.target is aten.convolution_backward.default else -1]
    return int(groups)


def node_bytes(node: fx.Node) -> int:
    """Bytes that the operator moves when it runs on its own."""
    written = value_bytes(value_of(node))
    read = [value_of(n) for n in node.all_input_nodes]
    if node.target in GATHERS:
        return written + sum(min(value_bytes(v), written) for v in read)
    return written + sum(map(value_bytes, read))


def is_atomic(node: fx.Node) -> bool:
    """Return whether the operator adds values up by index in a format that has atomic additions. Inductor's kernel then
    adds them where they go; PyTorch's sorts them first, far slower and with a workspace."""
    if node.target not in SCATTERS or torch.are_deterministic_algorithms_enabled():
        return False
    accumulates = node.kwargs.get("accumulate", node.args[3] if len(node.args) > 3 else False)
    indices = tensors(fx.node.map_arg(node.args[1], value_of))
    masked = any(t.dtype in (torch.bool, torch.uint8) for t in indices)
    return bool(accumulates) and not masked and value_of(node).dtype in ATOMIC


def generated(node: fx.Node) -> tuple[int, int] | None:
    """Bytes moved and kernels, where Inductor generates kernels for what PyTorch runs far slower; None elsewhere. The
    result of atomic additions is made first, then read and written again. A max-pool is one pass, in which windows that
    overlap are read from the cache."""
    if is_atomic(node):
        return node_bytes(node) + 2 * value_bytes(value_of(node)), 2
    if node.target is aten.max_pool2d_with_indices.default:
        sizes = cast(Sequence[int], node.args[1])
        if math.prod([*sizes, *sizes][:2]) <= WINDOW_LIMIT:  # one number stands for height and width
            return node_bytes(node), 1
    return None


def slowdown(node: fx.Node) -> float:
    """Factor by which the operator, on its own, takes longer than moving :func:`node_bytes`."""
    if node.target is aten.convolution_backward.default and convolution_groups(node) > 1:
        return GROUPED_BACKWARD
    return SLOWDOWN.get(node.target, 1.0)


def precision(node: fx.Node) -> torch.dtype:
    """The floating-point format that the operator computes in: that of its largest floating-point argument."""
    read = [t for n in node.all_input_nodes for t in tensors(value_of(n)) if t.dtype.is_floating_point]
    return max(read, key=Tensor.numel).dtype if read else torch.float32
