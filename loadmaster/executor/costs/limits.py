"""Limits on the values of operators' arguments, where not any value will do.

An operator on floating-point numbers alone runs on any. One that takes whole numbers or Booleans may take them for
positions, offsets, classes or counts, and on a GPU a wrong one ends the process. So such an operator is measured only
where it is *understood*: every argument of it that must not be anything has a limit here. There are three sorts:

- operators that compute with the numbers element by element: PyTorch marks them (``torch.Tag.pointwise``);
- operators that copy, sort, compare or add them up: :data:`_VALUES`;
- operators that have a rule: limits of single arguments, by name; whatever the rule does not name may be anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.costs.fills import (
    Fill,
    HostZeros,
    anything,
    at_most,
    below,
    bounds,
    constant,
    dominant,
    ends,
    mask,
    part_of_each,
    pivots,
    product,
    shares,
    starts,
    zeros,
)
from loadmaster.executor.costs.traffic import tensors
from loadmaster.executor.torch_private.operators import OpOverload, schema_of

Arguments = Mapping[str, Any]
"""All arguments of a call by name; fake tensors for tensors."""

Limits = Mapping[str, Fill | Sequence[Fill]]
"""Limits of arguments, by name. An argument that is a list of tensors has one for each."""

Rule = Callable[[Arguments], Limits | None]
"""The limits of a call's arguments; None where they are not known for such a call."""

# Groups of rows that grouped products take begin at multiples of 16 bytes.
_ALIGNED_ELEMENTS = 16


class NotUnderstoodError(Exception):
    """Some argument's limits are not known, so that the operator is not safe to run."""


def limits_of(target: object, arguments: Arguments) -> Limits:
    """Limits of a call's arguments, which may hold anything without one; NotUnderstoodError if not all are known."""
    if not isinstance(target, OpOverload):
        raise NotUnderstoodError("it is no operator of its own")
    rule = _RULES.get(name_of(target))
    takes_any = rule is not None or _takes_any(target)
    for name, value in arguments.items():
        for tensor in tensors(value):
            if tensor.layout is not torch.strided or tensor.is_quantized:
                raise NotUnderstoodError(f"its argument {name!r} is no dense tensor")
            if tensor.numel() and not (takes_any or tensor.dtype.is_floating_point or tensor.dtype.is_complex):
                word = "Booleans" if tensor.dtype == torch.bool else "whole numbers"
                raise NotUnderstoodError(f"which {word} its argument {name!r} may hold is not known")
    limits = {} if rule is None else rule(arguments)
    if limits is None:
        raise NotUnderstoodError("it is called in a way whose limits are not known")
    return limits


def is_safe(target: object) -> bool:
    """Return whether an understood operator is known to end no process: PyTorch's own and ours are, others' are not."""
    assert isinstance(target, OpOverload)
    return (_is_pytorchs(target) or target.namespace == "loadmaster") and _base(target) not in _IN_DOUBT


def register_limits(op: OpOverload, rule: Rule) -> None:
    """Set the rule of a custom operator; raises InputError if it has one."""
    if name_of(op) in _RULES:
        raise InputError("op", str(op), "has limits already", "Register each operator once.")
    _RULES[name_of(op)] = rule


def name_of(op: OpOverload) -> str:
    """An operator's name, ``aten::mul``, whether it writes in place or not, and whichever overload."""
    return f"{op.namespace}::{_base(op)}"


def _base(op: OpOverload) -> str:
    name = schema_of(op).name.partition("::")[2]
    return name.removesuffix("_") if schema_of(op).is_mutable else name


def _is_pytorchs(op: OpOverload) -> bool:
    return op.namespace in ("aten", "prims")


def _takes_any(op: OpOverload) -> bool:
    name = _base(op)
    return _is_pytorchs(op) and (torch.Tag.pointwise in op.tags or name.startswith("_foreach_") or name in _VALUES)


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Operators that copy, compare, sort or add up values, or do not read them.
_VALUES = _names(
    """
    _to_copy alias_copy as_strided_copy as_strided_scatter block_diag broadcast_in_dim cat channel_shuffle clone
    constant_pad_nd convert_element_type copy copy_strided copy_to detach_copy device_put diag_embed diagonal_backward
    diagonal_copy diagonal_scatter expand_copy flip im2col lift lift_fresh lift_fresh_copy narrow_copy permute_copy
    pixel_shuffle pixel_unshuffle reflection_pad1d reflection_pad2d reflection_pad3d repeat replication_pad1d
    replication_pad2d replication_pad3d reshape rev roll rot90 select_backward select_copy select_scatter slice_backward
    slice_copy slice_scatter split_copy split_with_sizes_copy squeeze_copy stack t_copy transpose_copy tril triu
    unbind_copy unfold_backward unfold_copy unsafe_split unsafe_split_with_sizes unsqueeze_copy upsample_nearest1d
    upsample_nearest2d upsample_nearest3d view_copy _chunk_cat _stack _reshape_copy _unsafe_view

    empty_like fill full_like new_empty new_empty_strided new_full new_ones new_zeros ones_like rand_like randint_like
    randn_like zero zeros_like bernoulli cauchy exponential geometric log_normal normal random uniform

    all amax amin aminmax any argmax argmin argsort count_nonzero cummax cummin cumprod cumsum equal hash_tensor histc
    kthvalue max median min mode nanmedian nansum prod sort sum topk trace xor_sum _is_all_true _is_any_true

    addbmm addmm addmv addr baddbmm bmm dot linalg_cross matmul mm mv vdot _int_mm _convert_weight_to_int4pack
    _weight_int4pack_mm _weight_int8pack_mm

    bucketize copysign eq floor_divide gcd ge gt heaviside isin lcm le lt masked_fill ne rsub where xlogy

    fake_quantize_per_channel_affine_cachemask fake_quantize_per_tensor_affine_cachemask
    _fake_quantize_learnable_per_channel_affine _fake_quantize_learnable_per_channel_affine_backward
    _fake_quantize_learnable_per_tensor_affine _fake_quantize_learnable_per_tensor_affine_backward
    _fake_quantize_per_tensor_affine_cachemask_tensor_qparams

    _amp_foreach_non_finite_check_and_unscale _amp_update_scale _assert_tensor_metadata _fused_sdp_choice _masked_scale
    _masked_softmax _masked_softmax_backward _scaled_dot_product_efficient_attention
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward
    _scaled_dot_product_cudnn_attention _scaled_dot_product_fused_attention_overrideable

    inductor_lookup_seed
    """
)

# Libraries read bytes here that an earlier call of theirs wrote.
_IN_DOUBT = frozenset({"_cudnn_rnn_backward", "batch_norm_backward", "cudnn_batch_norm_backward"})


def _along(dim: object, tensor: Tensor) -> Fill:
    assert isinstance(dim, int)
    return below(int(tensor.shape[dim]) if tensor.dim() else 1)


def _in_dimension(a: Arguments) -> Limits:
    return {"index": _along(a["dim"], a["self"])}


def _in_dimensions(a: Arguments) -> Limits:
    """Limits of a list of indices: each indexes the next dimension, a mask as many as it has, None one."""
    found: list[Fill] = []
    dim = 0
    for index in a["indices"]:
        if index is None:
            found.append(anything)
            dim += 1
        elif index.dtype in (torch.bool, torch.uint8):
            found.append(mask)
            dim += index.dim()
        else:
            found.append(below(int(a["self"].shape[dim])))
            dim += 1
    return {"indices": found}


def _rows_of(name: str) -> Rule:
    return lambda a: {"indices": below(int(a[name].shape[0]))}


def _bags(a: Arguments) -> Limits:
    count = a["indices"].numel()
    offsets = bounds(count) if a.get("include_last_offset") else starts(count)
    return {"indices": below(int(a["weight"].shape[0])), "offsets": offsets}


def _bags_backward(a: Arguments) -> Limits:
    rows = below(int(a["num_weights"] if "num_weights" in a else a["weight"].shape[0]))
    count = a["indices"].numel()
    return {
        "indices": rows,
        "maximum_indices": rows,
        "offsets": starts(count),
        "offset2bag": part_of_each(int(a["grad"].shape[0])),
        "bag_size": shares(count),
    }


def _classes(a: Arguments) -> Limits:
    scores = a["self"]
    return {"target": below(int(scores.shape[1 if scores.dim() > 1 else 0]))}


def _last_classes(a: Arguments) -> Limits:
    return {"target": below(int(a["self"].shape[-1]) if a["self"].dim() else 1)}


def _ctc(a: Arguments) -> Limits:
    targets, steps = a["targets"], int(a["log_probs"].shape[0])
    lengths = constant(int(targets.shape[1])) if targets.dim() > 1 else shares(targets.numel())
    return {
        "targets": below(int(a["log_probs"].shape[-1])),
        "input_lengths": constant(steps),
        "target_lengths": lengths,
    }


def _in_plane(dims: int) -> Rule:
    """Limits of positions in the last dimensions of a pool's input."""
    return lambda a: {"indices": below(product(list(a["self"].shape[-dims:])))}


def _chosen(a: Arguments) -> Limits:
    """Limit of a mask: no more True elements than there are values; a smaller mask stands for several elements."""
    repeats = -(-a["self"].numel() // max(1, a["mask"].numel()))
    return {"mask": at_most(a["source"].numel() // max(1, repeats))}


def _chosen_backward(a: Arguments) -> Limits:
    repeats = -(-a["grad_output"].numel() // max(1, a["mask"].numel()))
    return {"mask": at_most(product(list(a["sizes"])) // max(1, repeats))}


def _repeats(a: Arguments) -> Limits:
    return {} if a.get("output_size") is None else {"repeats": shares(int(a["output_size"]))}


def _segments(a: Arguments) -> Limits | None:
    if a["axis"] != 0 or a.get("indices") is not None:
        return None
    rows = int(a["data"].shape[0])
    return {"lengths": shares(rows), "offsets": bounds(rows)}


def _groups(a: Arguments) -> Limits:
    """Limits of the ends of groups: of rows, of columns, or of what is summed over, by which operand is 2-D."""
    first, second = a["self"], a["mat2"]
    if first.dim() == 3:
        total = second.shape[-1]
    else:
        total = first.shape[0] if second.dim() == 3 else first.shape[1]
    return {"offs": ends(int(total), _ALIGNED_ELEMENTS)}


def _jagged(a: Arguments) -> Limits | None:
    return {"offsets": [bounds(int(a["values"].shape[0]))]} if len(a["offsets"]) == 1 else None


def _to_jagged(a: Arguments) -> Limits | None:
    if len(a["offsets"]) != 1 or a.get("total_L") is None:
        return None
    return {"offsets": [bounds(int(a["total_L"]))]}


def _sequences(dim: int, seeds: Limits) -> Rule:
    """Limits of sequences that are stored one after another along a dimension of queries and keys."""

    def rule(a: Arguments) -> Limits | None:
        if any(a.get(name) is not None for name in ("seqused_k", "block_table", "seqlen_k")):
            return None
        of_queries, of_keys = (bounds(int(a[name].shape[dim])) for name in ("query", "key"))
        lengths = {"cum_seq_q": of_queries, "cum_seq_k": of_keys, "cu_seqlens_q": of_queries, "cu_seqlens_k": of_keys}
        return {**lengths, **seeds}

    return rule


def _seeded(a: Arguments) -> Limits | None:
    lengths = (a.get(name) for name in ("cum_seq_q", "cum_seq_k"))
    return None if any(given is not None and given.numel() for given in lengths) else _SEEDS


def _always(**limits: Fill) -> Rule:
    return lambda _: limits


_SEEDS: Limits = dict.fromkeys(("philox_seed", "philox_offset", "rng_state", "unused", "seed"), zeros)
# The memory-efficient kernels read the seed of their mask through a pointer to host memory.
_HOST_SEEDS: Limits = dict.fromkeys(("philox_seed", "philox_offset"), HostZeros())

_ATEN: tuple[tuple[Rule, str], ...] = (
    (_in_dimension, "gather scatter scatter_add scatter_reduce"),
    (_in_dimension, "index_select index_add index_copy index_fill index_reduce"),
    (_in_dimensions, "index index_put _index_put_impl _unsafe_index _unsafe_index_put"),
    (_in_dimensions, "_unsafe_masked_index _unsafe_masked_index_put_accumulate"),
    (lambda a: {"index": below(a["self"].numel())}, "take put"),
    (_rows_of("weight"), "embedding"),
    (_rows_of("self"), "embedding_renorm"),
    (lambda a: {"indices": below(int(a["num_weights"]))}, "embedding_dense_backward"),
    (_bags, "_embedding_bag _embedding_bag_forward_only"),
    (_bags_backward, "_embedding_bag_backward _embedding_bag_dense_backward"),
    (_bags_backward, "_embedding_bag_per_sample_weights_backward"),
    (_classes, "nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward"),
    (_last_classes, "multi_margin_loss multi_margin_loss_backward"),
    (_last_classes, "multilabel_margin_loss_forward multilabel_margin_loss_backward"),
    (_ctc, "_ctc_loss _ctc_loss_backward"),
    (_in_plane(2), "max_pool2d_with_indices_backward adaptive_max_pool2d_backward fractional_max_pool2d_backward"),
    (_in_plane(3), "max_pool3d_with_indices_backward adaptive_max_pool3d_backward fractional_max_pool3d_backward"),
    (lambda a: {"indices": below(product(list(a["output_size"])))}, "max_unpool2d max_unpool3d"),
    (_chosen, "masked_scatter"),
    (_chosen_backward, "masked_scatter_backward"),
    (_repeats, "repeat_interleave"),
    (lambda a: {"self": below(int(a["minlength"]))}, "bincount"),
    (lambda a: {"sorter": below(int(a["sorted_sequence"].shape[-1]))}, "searchsorted"),
    (_segments, "segment_reduce _segment_reduce_backward"),
    (_groups, "_grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2"),
    (_jagged, "_jagged_to_padded_dense_forward"),
    (_to_jagged, "_padded_dense_to_jagged_forward"),
    (_sequences(0, _SEEDS), "_flash_attention_forward _flash_attention_backward"),
    (_sequences(1, _HOST_SEEDS), "_efficient_attention_forward _efficient_attention_backward"),
    (lambda _: _HOST_SEEDS, "_scaled_dot_product_efficient_attention_backward"),
    (_seeded, "_scaled_dot_product_flash_attention_backward"),
    (_seeded, "_scaled_dot_product_cudnn_attention_backward _cudnn_attention_backward"),
    (_seeded, "_scaled_dot_product_fused_attention_overrideable_backward _cudnn_attention_forward"),
    (_always(reserve=zeros, reserveSpace=zeros, dropout_state=zeros), " ".join(sorted(_IN_DOUBT))),
    (_always(self=constant(1)), "_assert_async _functional_assert_async"),
    (
        _always(self=dominant),
        "cholesky cholesky_inverse linalg_cholesky_ex linalg_ldl_factor_ex linalg_solve_triangular",
    ),
    (_always(A=dominant), "linalg_inv_ex linalg_lu linalg_lu_factor_ex _linalg_solve_ex _linalg_det _linalg_slogdet"),
    (_always(A=dominant), "triangular_solve _cholesky_solve_helper"),
    (_always(input2=dominant), "cholesky_solve"),
    (_always(LU=dominant, pivots=pivots), "linalg_lu_solve"),
    (_always(LU_data=dominant, LU_pivots=pivots), "lu_unpack"),
    (_always(LD=dominant, pivots=pivots), "linalg_ldl_solve"),
)

_RULES: dict[str, Rule] = {f"aten::{name}": rule for rule, names in _ATEN for name in _names(names)}
# Mixtures of experts run these where grouped products do not run.
_RULES |= {
    f"transformers::grouped_mm_fallback{of}": lambda a: {"offs": ends(int(a["input"].shape[0]), 1)}
    for of in ("", "_backward")
}
_RULES |= {f"prims::{name}": lambda _: _SEEDS for name in ("inductor_random", "inductor_randint")}
