"""The operators of ATen by name, each with the rule that says what it does with the dimensions of its tensors.

What has no rule here runs whole on every worker, unless it is said to take its inputs element by element.
"""

from __future__ import annotations

from collections.abc import Mapping

from loadmaster.models.partition.tdl import rules
from loadmaster.models.partition.tdl.calls import TdlCall
from loadmaster.models.partition.tdl.formula import Formula
from loadmaster.models.partition.tdl.rules import Rule


def formula_of(call: TdlCall) -> Formula | None:
    """The formula of a call; None where no rule knows it."""
    rule = RULES.get(call.name, rules.pointwise if call.pointwise else None)
    if rule is None:
        return None
    try:
        return rule(call)
    except (StopIteration, IndexError, KeyError, TypeError, ValueError):
        return None  # called otherwise than the rule expects


def _of_family(rule: Rule, names: str) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


RULES: Mapping[str, Rule] = {
    "mm": rules.fixed("mk", "kn", to="mn"),
    "bmm": rules.fixed("bmk", "bkn", to="bmn"),
    "mv": rules.fixed("mk", "k", to="m"),
    "dot": rules.fixed("k", "k", to=""),
    "vdot": rules.fixed("k", "k", to=""),
    "outer": rules.fixed("m", "n", to="mn"),
    **_of_family(
        rules.pointwise,
        """clone _to_copy copy zeros_like ones_like full_like empty_like native_dropout_backward where masked_fill
        lift_fresh_copy fill _prelu_kernel _prelu_kernel_backward binary_cross_entropy binary_cross_entropy_backward
        binary_cross_entropy_with_logits mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward huber_loss
        huber_loss_backward soft_margin_loss soft_margin_loss_backward hardtanh_backward hardswish_backward
        hardsigmoid_backward leaky_relu_backward elu_backward log_sigmoid_forward log_sigmoid_backward
        softplus_backward softshrink_backward hardshrink_backward rrelu_with_noise_backward hardswish mish_backward
        rsub floor_divide complex polar""",
    ),
    **_of_family(rules.filled, "full zeros ones empty new_zeros new_ones new_full new_empty"),
    **_of_family(rules.summed, "sum nansum count_nonzero"),
    **_of_family(
        rules.reduced,
        """amax amin prod max min argmax argmin any all var std var_mean std_mean logsumexp linalg_vector_norm norm mean
        median nanmedian mode aminmax""",
    ),
    **_of_family(
        rules.along,
        """_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data cumsum cumprod cummax cummin
        logcumsumexp sort flip roll fft_fft _safe_softmax""",
    ),
    **_of_family(
        rules.changed_along,
        """gather scatter scatter_add scatter_reduce topk kthvalue cat slice_backward slice_scatter slice glu
        glu_backward""",
    ),
    "stack": rules.stacked,
    "select_backward": rules.select_backward,
    "constant_pad_nd": rules.padded,
    "embedding": rules.looked_up,
    "embedding_dense_backward": rules.looked_up_backward,
    **_of_family(
        rules.normalized,
        "native_layer_norm native_layer_norm_backward _fused_rms_norm _fused_rms_norm_backward",
    ),
    **_of_family(rules.group_normalized, "native_group_norm native_group_norm_backward"),
    **_of_family(
        rules.batch_normalized,
        """native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional
        _native_batch_norm_legit_no_training native_batch_norm_backward""",
    ),
    **_of_family(
        rules.windowed,
        """max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices
        max_pool3d_with_indices_backward avg_pool1d avg_pool2d avg_pool2d_backward avg_pool3d avg_pool3d_backward
        _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d _adaptive_avg_pool3d_backward
        adaptive_max_pool2d adaptive_max_pool2d_backward adaptive_max_pool3d adaptive_max_pool3d_backward
        upsample_nearest1d upsample_nearest1d_backward upsample_nearest2d upsample_nearest2d_backward
        upsample_nearest3d upsample_nearest3d_backward upsample_bilinear2d upsample_bilinear2d_backward
        upsample_bicubic2d upsample_bicubic2d_backward upsample_linear1d upsample_linear1d_backward
        upsample_trilinear3d upsample_trilinear3d_backward _upsample_bilinear2d_aa _upsample_bicubic2d_aa
        _upsample_bilinear2d_aa_backward _upsample_nearest_exact1d _upsample_nearest_exact1d_backward
        _upsample_nearest_exact2d _upsample_nearest_exact2d_backward
        reflection_pad1d reflection_pad2d reflection_pad3d reflection_pad1d_backward reflection_pad2d_backward
        replication_pad1d replication_pad2d replication_pad3d replication_pad1d_backward replication_pad2d_backward""",
    ),
    "convolution": rules.convolved,
    "convolution_backward": rules.convolved_backward,
    **_of_family(rules.log_likelihood, "nll_loss_forward nll_loss2d_forward"),
    **_of_family(rules.log_likelihood_backward, "nll_loss_backward nll_loss2d_backward"),
    **_of_family(
        rules.attention,
        """_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward
        _scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward
        _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward
        _scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward""",
    ),
    **_of_family(
        rules.leading(-2),
        """tril triu linalg_inv_ex linalg_cholesky_ex _linalg_det _linalg_slogdet _linalg_svd _linalg_eigh linalg_eig
        linalg_qr linalg_lu linalg_lu_factor_ex linalg_matrix_exp cholesky cholesky_inverse cholesky_solve
        linalg_solve_triangular triangular_solve linalg_householder_product""",
    ),
    **_of_family(rules.leading(1), "pixel_shuffle pixel_unshuffle channel_shuffle im2col col2im grid_sampler_2d"),
    **_of_family(rules.leading(1), "grid_sampler_2d_backward grid_sampler_3d grid_sampler_3d_backward"),
    **_of_family(rules.leading(2), "max_unpool2d max_unpool3d fractional_max_pool2d fractional_max_pool3d"),
    **_of_family(rules.selected, "index_select index_add index_copy index_fill"),
    **_of_family(rules.sought, "bucketize isin"),
    "scalar_tensor": rules.fixed(to=""),
    **_of_family(rules.by_index, "index _unsafe_index index_put _unsafe_index_put"),
    "repeat": rules.repeated,
}
