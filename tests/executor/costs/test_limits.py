"""Made-up inputs are such as operators accept: PyTorch's own kernels on the processor say so, which check what CUDA's
assert."""

from __future__ import annotations

import pytest
import torch

from loadmaster.executor.costs.limits import _RULES, NotUnderstoodError, limits_of, name_of
from loadmaster.executor.costs.materialize import materialize
from tests.executor.costs.fake_calls import BOOL, call, ints, t

aten = torch.ops.aten
CPU = torch.device("cpu")
SIZES = [(97, 3), (3, 97), (1, 50), (50, 1)]


def cases(n, m):
    """Calls of every operator that has a rule and runs on a processor, on shapes [n, m] of which one is much larger."""
    x, image, volume = t(n, m), t(2, 3, n, m), t(2, 3, 2, n, m)
    one = ([1, 1], [1, 1], [0, 0], [1, 1])
    for dim, size in ((0, n), (1, m), (-1, m)):
        index = ints(size)
        yield call(aten.index_select.default, x, dim, ints(200))
        for make in (aten.index_add, aten.index_copy):
            yield call(make.default, x, dim, index, x)
        yield call(aten.index_add_.default, x, dim, index, x)
        yield call(aten.index_fill.int_Scalar, x, dim, ints(200), 1.0)
        yield call(aten.index_reduce.default, x, dim, index, x, "amax")
        yield call(aten.gather.default, x, dim, ints(n, m))
        yield call(aten.scatter.src, x, dim, ints(n, m), x)
        yield call(aten.scatter.value, x, dim, ints(n, m), 1.0)
        yield call(aten.scatter_.src, x, dim, ints(n, m), x)
        yield call(aten.scatter_add.default, x, dim, ints(n, m), x)
        yield call(aten.scatter_reduce.two, x, dim, ints(n, m), x, "sum")
    for indices in ([ints(n), ints(n)], [None, ints(200)], [ints(200)], [ints(200, 1), ints(7)], [t(n, dtype=BOOL)]):
        yield call(aten.index.Tensor, x, indices)
        if indices[-1].dtype != BOOL:
            yield call(aten._unsafe_index.Tensor, x, indices)
        for put in (aten.index_put, aten._unsafe_index_put, aten.index_put_, aten._index_put_impl_):
            yield call(put.default, x, indices, t(1), True)
    yield call(aten.index.Tensor, t(n, m, 5), [t(n, m, dtype=BOOL), ints(1)])
    yield call(aten._unsafe_masked_index.default, x, t(n, dtype=BOOL), [ints(n), ints(n)], 0)
    yield call(aten._unsafe_masked_index_put_accumulate.default, x, t(n, dtype=BOOL), [ints(n), ints(n)], t(n))
    yield call(aten.take.default, x, ints(300))
    yield call(aten.put.default, x, ints(300), t(300))
    yield call(aten.embedding.default, x, ints(200, 2), 0)
    yield call(aten.embedding_dense_backward.default, t(200, m), ints(200), n, 0, False)
    yield call(aten.embedding_renorm_.default, x, ints(200), 1.0, 2.0)
    for last in (False, True):
        for mode in (0, 1, 2):
            yield call(aten._embedding_bag.default, x, ints(200), ints(9), False, mode, False, None, last)
            yield call(aten._embedding_bag_forward_only.default, x, ints(200), ints(9), False, mode, False, None, last)
    bags = (ints(200), ints(9), ints(200), ints(9))
    for mode in (0, 1):
        yield call(aten._embedding_bag_backward.default, t(9, m), *bags, ints(9), n, False, mode, False, None)
        yield call(
            aten._embedding_bag_dense_backward.default,
            *(t(9, m), ints(200), ints(200), ints(9), ints(9), n, False, mode, None),
        )
    yield call(
        aten._embedding_bag_dense_backward.default,
        *(t(9, m), ints(200), ints(200), ints(9), ints(9, m), n, False, 2, None),
    )
    yield call(aten._embedding_bag_per_sample_weights_backward.default, t(9, m), x, *bags[:3], 0)
    for weight in (None, t(m)):
        yield call(aten.nll_loss_forward.default, x, ints(n), weight, 1, -100)
        yield call(aten.nll_loss_backward.default, t(), x, ints(n), weight, 1, -100, t())
        yield call(aten.nll_loss2d_forward.default, t(2, m, n, 4), ints(2, n, 4), weight, 1, -100)
        yield call(aten.nll_loss2d_backward.default, t(), t(2, m, n, 4), ints(2, n, 4), weight, 1, -100, t())
        yield call(aten.multi_margin_loss.default, x, ints(n), 1, 1.0, weight)
        yield call(aten.multi_margin_loss_backward.default, t(), x, ints(n), 1, 1.0, weight)
    yield call(aten.nll_loss_forward.default, t(m), ints(), None, 1, -100)
    yield call(aten.multilabel_margin_loss_forward.default, x, ints(n, m), 1)
    yield call(aten.multilabel_margin_loss_backward.default, t(), x, ints(n, m), 1, x)
    for lengths in (([n] * 4, [3] * 4), (ints(4), ints(4))):
        for targets in (ints(4, 3), ints(12)):
            made = t(n, 4, m), targets, *lengths
            yield call(aten._ctc_loss.Tensor if lengths[0] != [n] * 4 else aten._ctc_loss.default, *made, 0)
    loss, alpha = torch.ops.aten._ctc_loss(torch.zeros(n, 4, m), torch.zeros(4, 3, dtype=torch.int64), [n] * 4, [3] * 4)
    ends = (t(*loss.shape), t(*alpha.shape), 0)
    yield call(aten._ctc_loss_backward.default, t(4), t(n, 4, m), ints(4, 3), [n] * 4, [3] * 4, *ends)
    yield call(aten._ctc_loss_backward.Tensor, t(4), t(n, 4, m), ints(4, 3), ints(4), ints(4), *ends)
    yield call(aten.max_pool2d_with_indices_backward.default, image, image, *one, False, ints(2, 3, n, m))
    yield call(
        aten.max_pool3d_with_indices_backward.default,
        *(volume, volume, [1, 1, 1], [1, 1, 1], [0, 0, 0], [1, 1, 1], False, ints(2, 3, 2, n, m)),
    )
    small = min(n, m, 2)
    yield call(aten.adaptive_max_pool2d_backward.default, t(2, 3, small, small), image, ints(2, 3, small, small))
    yield call(aten.adaptive_max_pool3d_backward.default, t(2, 3, 1, 1, 1), volume, ints(2, 3, 1, 1, 1))
    yield call(aten.fractional_max_pool2d_backward.default, t(2, 3, 1, 1), image, [1, 1], [1, 1], ints(2, 3, 1, 1))
    yield call(
        aten.fractional_max_pool3d_backward.default,
        *(t(2, 3, 1, 1, 1), volume, [1, 1, 1], [1, 1, 1], ints(2, 3, 1, 1, 1)),
    )
    yield call(aten.max_unpool2d.default, t(2, 3, 4, 4), ints(2, 3, 4, 4), [n, m])
    yield call(aten.max_unpool3d.default, t(2, 3, 2, 4, 4), ints(2, 3, 2, 4, 4), [2, n, m], [1, 1, 1], [0, 0, 0])
    for source in (t(1), t(n * m), t(3)):
        yield call(aten.masked_scatter.default, x, t(n, m, dtype=BOOL), source)
    yield call(aten.masked_scatter.default, x, t(m, dtype=BOOL), t(n))
    yield call(aten.masked_scatter_backward.default, x, t(n, m, dtype=BOOL), [2])
    yield call(aten.repeat_interleave.Tensor, ints(n), output_size=n * m)
    yield call(aten.repeat_interleave.Tensor, ints(n))
    yield call(aten.bincount.default, ints(200), None, m)
    yield call(aten.searchsorted.Tensor, x, t(n, 4), sorter=ints(n, m))
    yield call(aten.segment_reduce.default, x, "sum", lengths=ints(4))
    yield call(aten.segment_reduce.default, x, "sum", offsets=ints(5))
    yield call(aten._segment_reduce_backward.default, t(4, m), t(4, m), x, "sum", lengths=ints(4))
    half = torch.bfloat16
    for a, b in (((n * 16, 16), (5, 16, 32)), ((32, n * 16), (n * 16, 32)), ((5, 16, 32), (32, m * 16))):
        yield call(aten._grouped_mm.default, t(*a, dtype=half), t(*b, dtype=half), t(5, dtype=torch.int32), None, half)
    yield call(aten._jagged_to_padded_dense_forward.default, x, [ints(6)], [n])
    yield call(aten._padded_dense_to_jagged_forward.default, t(5, n, m), [ints(6)], n)
    yield call(aten._assert_async.default, t(dtype=BOOL))
    yield call(aten._assert_async.msg, t(dtype=BOOL), "is so")
    yield call(aten._functional_assert_async.msg, t(dtype=BOOL), "is so", t(1))
    square = t(2, n, n)
    if hasattr(aten, "cholesky"):
        yield call(aten.cholesky.default, square)
    yield call(aten.cholesky_inverse.default, square)
    yield call(aten.cholesky_solve.default, t(2, n, m), square)
    yield call(aten._cholesky_solve_helper.default, t(2, n, m), square, False)
    yield call(aten.linalg_cholesky_ex.default, square, check_errors=True)
    yield call(aten.linalg_inv_ex.default, square, check_errors=True)
    yield call(aten.linalg_ldl_factor_ex.default, square, check_errors=True)
    yield call(aten.linalg_ldl_solve.default, square, t(2, n, dtype=torch.int32), t(2, n, m))
    yield call(aten.linalg_lu.default, t(2, n, m))
    yield call(aten.linalg_lu_factor_ex.default, square, check_errors=True)
    yield call(aten.linalg_lu_solve.default, square, t(2, n, dtype=torch.int32), t(2, n, m))
    yield call(aten.lu_unpack.default, square, t(2, n, dtype=torch.int32))
    yield call(aten._linalg_solve_ex.default, square, t(2, n, m), check_errors=True)
    yield call(aten._linalg_det.default, square)
    yield call(aten._linalg_slogdet.default, square)
    yield call(aten.linalg_solve_triangular.default, square, t(2, n, m), upper=True)
    yield call(aten.triangular_solve.default, t(2, n, m), square)


# Only CUDA has these. What is made up for them is held against what their documentation asks for, below.
GONE_IN_LATER = ("cholesky",)  # from PyTorch 2.14 on
CUDA_ALONE = {
    *("_flash_attention_forward", "_flash_attention_backward", "_efficient_attention_forward"),
    *("_efficient_attention_backward", "_scaled_dot_product_flash_attention_backward"),
    *("_scaled_dot_product_efficient_attention_backward", "_scaled_dot_product_cudnn_attention_backward"),
    *("_cudnn_attention_backward", "_cudnn_attention_forward", "_scaled_grouped_mm", "_scaled_grouped_mm_v2"),
    "_scaled_dot_product_fused_attention_overrideable_backward",
    *("_cudnn_rnn_backward", "cudnn_batch_norm_backward", "batch_norm_backward"),
}


@pytest.mark.parametrize(("n", "m"), SIZES)
def test_pytorch_accepts_what_is_made_up(n, m):
    refused = {}
    for node in cases(n, m):
        try:
            args, kwargs = materialize(node, CPU)
            node.target(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - each is told of, whatever it raises
            refused[f"{node.target} {[getattr(a, 'shape', a) for a in args]}"] = str(error).splitlines()[0]
    assert refused == {}


def test_every_rule_is_tried_or_runs_on_cuda_alone():
    tried = {name_of(node.target) for node in cases(7, 5)}
    ours = {name for name in _RULES if not name.startswith("aten::")}
    gone = {f"aten::{name}" for name in GONE_IN_LATER if not hasattr(aten, name)}
    assert {f"aten::{name}" for name in CUDA_ALONE} | tried | ours | gone == set(_RULES)
    assert not tried & {f"aten::{name}" for name in CUDA_ALONE}


def made(node, at):
    """What is made up for an argument, by position."""
    return materialize(node, CPU)[0][at]


@pytest.mark.parametrize(("n", "m"), SIZES)
def test_positions_that_kernels_do_not_check_are_in_range(n, m):
    """A pool's backward adds wherever its indices say."""
    one = ([1, 1], [1, 1], [0, 0], [1, 1])
    image = t(2, 3, n, m)
    node = call(aten.max_pool2d_with_indices_backward.default, image, image, *one, False, ints(2, 3, n, m))
    assert made(node, -1).min() >= 0 and made(node, -1).max() < n * m
    node = call(
        aten._embedding_bag_dense_backward.default, t(9, m), ints(200), ints(200), ints(9), ints(9), n, False, 0, None
    )
    assert made(node, 1).max() < n and made(node, 2).max() < 9 and made(node, 3).sum() == 200
    node = call(aten._ctc_loss.Tensor, t(n, 4, m), ints(12), ints(4), ints(4), 0)
    assert made(node, 1).max() < m and made(node, 2).tolist() == [n] * 4 and made(node, 3).sum() == 12


def test_sequences_lie_one_after_another_and_end_where_the_tokens_do():
    q, k = t(100, 4, 8), t(30, 4, 8)
    bounds = t(6, dtype=torch.int32)
    options = (50, 20, 0.0, False, False)
    args = materialize(call(aten._flash_attention_forward.default, q, k, k, bounds, bounds, *options), CPU)[0]
    for made_up, total in ((args[3], 100), (args[4], 30)):
        assert made_up[0] == 0 and made_up[-1] == total and (made_up.diff() > 0).all()
        assert made_up.dtype == torch.int32
    q, k = t(1, 100, 4, 8), t(1, 30, 4, 8)
    args = materialize(
        call(aten._efficient_attention_forward.default, q, k, k, None, bounds, bounds, 50, 20, 0.0, 0), CPU
    )[0]
    assert args[4][-1] == 100 and args[5][-1] == 30


def test_seeds_are_zero_whatever_their_type():
    dense = t(2, 4, 16, 8)
    seed, offset = t(2, dtype=torch.uint64), t(dtype=torch.uint64)
    rest = (None, None, 16, 16, 0.1, False, seed, offset)
    args = materialize(
        call(aten._scaled_dot_product_flash_attention_backward.default, *[dense] * 5, t(2, 4, 16), *rest), CPU
    )[0]
    assert args[-2].tolist() == [0, 0] and args[-1].item() == 0


def test_groups_are_aligned_and_within_what_there_is():
    half = torch.bfloat16
    node = call(aten._grouped_mm.default, t(1000, 16, dtype=half), t(7, 16, 8, dtype=half), t(7, dtype=torch.int32))
    ends = made(node, 2)
    assert (ends % 16 == 0).all() and (ends.diff() >= 0).all() and 984 <= ends[-1] <= 1000


@pytest.mark.parametrize(
    "node",
    [
        call(aten._pack_padded_sequence.default, t(5, 3, 2), ints(3), False),
        call(
            aten._flash_attention_forward.default,
            *[t(9, 4, 8)] * 3,
            None,
            None,
            9,
            9,
            0.0,
            False,
            False,
            seqused_k=ints(1),
        ),
        call(aten.segment_reduce.default, t(4, 5), "sum", lengths=ints(4, 2), axis=1),
        call(torch.ops.higher_order.flex_attention, *[t(1, 1, 4, 8)] * 3),
    ],
    ids=lambda node: str(node.target),
)
def test_what_is_not_known_is_not_guessed(node):
    with pytest.raises(NotUnderstoodError):
        materialize(node, CPU)


def test_no_whole_number_of_others_is_guessed():
    @torch.library.custom_op("loadmaster_test::rows_at", mutates_args=())
    def rows_at(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return x.clone()

    op = rows_at._opoverload
    assert limits_of(op, {"x": torch.zeros(3), "at": torch.zeros(2)}) == {}
    for wrong in (torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.bool)):
        with pytest.raises(NotUnderstoodError, match="'at'"):
            limits_of(op, {"x": torch.zeros(3), "at": wrong})
