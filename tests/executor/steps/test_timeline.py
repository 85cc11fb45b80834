"""The measured timeline: which kernels are whose, bytes as the device sees them, snapshots."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch._C._autograd import DeviceType

from loadmaster.errors import InputError
from loadmaster.executor.steps import timeline as timelines
from loadmaster.executor.steps.timeline import Span, Timeline, record_snapshot

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "product"),
    [
        ("triton_poi_fused_convolution_relu_3", False),
        ("triton_tem_fused_mm_0", True),
        ("sm90_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc", True),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x64>", True),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT", True),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128>>", True),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>", False),
        ("void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<3>", True),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512>", False),
        ("_pack_inside", False),
        ("_ZN3fmha12flash_kernelE", True),
        ("Memcpy DtoD (Device -> Device)", False),
    ],
)
def test_kernels_of_libraries_are_told_from_all_others(name, product):
    assert Span(name, 7, 0.0, 1.0).is_product is product


def test_copies_to_the_host_are_no_compute():
    spans = [("triton_poi_fused_0", 3.0), ("nvjet_x", 5.0), ("Memcpy DtoH (Device -> Pinned)", 90.0)]
    timeline = Timeline("cuda", tuple(Span(n, 7, 0.0, d) for n, d in spans), ((0.0, 1),))
    assert (timeline.products_us, timeline.moves_us) == (5.0, 3.0)


def event(name, start_ns, duration_ns=0, *, cuda=False, correlation=0, nbytes=0, stream=7):
    return SimpleNamespace(
        name=lambda: name,
        start_ns=lambda: start_ns,
        duration_ns=lambda: duration_ns,
        device_type=lambda: DeviceType.CUDA if cuda else DeviceType.CPU,
        correlation_id=lambda: correlation,
        device_resource_id=lambda: stream,
        is_user_annotation=lambda: "##" in name,
        nbytes=lambda: nbytes,
    )


def test_bytes_count_from_the_kernel_that_the_host_launches_next():
    """The host allocates 100, launches a, allocates 50, frees 100, launches b, and only then a starts to run."""
    events = [
        event("[memory]", 1_000, cuda=True, nbytes=100),
        event("aten::mm", 1_500, 900, correlation=2),  # operators have numbers of their own
        event("cudaLaunchKernel", 2_000, 500, correlation=1),
        event("[memory]", 3_000, cuda=True, nbytes=50),
        event("[memory]", 3_500, cuda=True, nbytes=-100),
        event("cudaLaunchKernel", 4_000, 500, correlation=2),
        event("[memory]", 5_000, cuda=True, nbytes=-50),
        event("## a compiled graph ##", 10_000, 9_000, cuda=True),
        event("a", 10_000, 4_000, cuda=True, correlation=1),
        event("b", 15_000, 2_000, cuda=True, correlation=2),
    ]
    kernels = timelines._kernels(events)
    assert [k.name() for k in kernels] == ["a", "b"]
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    moved = timelines._as_the_device_sees(changes, events, kernels)
    assert moved == [(10_000, 100), (15_000, 50), (15_000, -100), (17_000, -50)]
    assert timelines._as_the_device_sees(changes, [], kernels) == changes  # nothing is known of launches


def test_snapshots_are_recorded_on_cuda_alone():
    with pytest.raises(InputError, match="keeps no history"):
        record_snapshot(lambda: None, CPU)


@pytest.mark.gpu
def test_a_snapshot_holds_the_steps_events():
    device = torch.device("cuda")
    snapshot = record_snapshot(lambda: torch.ones(1 << 20, device=device) + 1, device)
    actions = {e["action"] for trace in snapshot["device_traces"] for e in trace}
    assert {"alloc", "free_completed"} <= actions
