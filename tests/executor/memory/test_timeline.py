"""The measured timeline: what ran, bytes as the allocator counts them, one trace with the planned step beside it."""

from __future__ import annotations

import itertools
import json
from types import SimpleNamespace

import pytest
import torch
from torch._C._autograd import DeviceType

from loadmaster.errors import InputError
from loadmaster.executor import apply, capture, measure
from loadmaster.executor.steps import timeline as timelines
from loadmaster.executor.steps.snapshot import record_snapshot
from loadmaster.executor.steps.timeline import Span, Timeline, record, side_by_side
from loadmaster.models.memory.checker import check
from tests.executor.memory.models import convnet_case
from tests.executor.memory.schedules import plan, schedule

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def recorded():
    model, inputs, loss = convnet_case(dtype=torch.float32, batch=8, size=32, channels=16)
    problem = capture(model, inputs, loss, hardware="cpu", backend="eager")
    by_hand = plan(problem, schedule(problem, lambda i: i % 2 == 0))
    step = apply(by_hand, model, loss, backend="eager")

    def run():
        step(*inputs).backward()
        model.zero_grad(set_to_none=True)

    run()
    resident = [*model.parameters(), *model.buffers(), *inputs]
    resident_bytes = sum(t.nbytes for t in resident)
    peak_bytes = measure(run, resident=resident, warmup=0, repeats=0).peak_bytes
    return problem, by_hand, record(run, CPU, resident_bytes), peak_bytes


def test_bytes_are_those_of_the_allocator(recorded):
    _, _, timeline, peak_bytes = recorded
    assert timeline.peak_bytes == peak_bytes
    assert timeline.memory[0][1] == timeline.memory[-1][1]  # a step leaves nothing behind
    times = [at for at, _ in timeline.memory]
    assert times == sorted(times)


def test_operators_ran_one_after_another(recorded):
    _, _, timeline, _ = recorded
    names = {s.name for s in timeline.spans}
    assert "aten::convolution_backward" in names
    assert all(s.start_us >= 0 and s.duration_us >= 0 for s in timeline.spans)
    for track in {s.track for s in timeline.spans}:
        spans = [s for s in timeline.spans if s.track == track]
        assert all(b.start_us >= a.start_us + a.duration_us - 1e-3 for a, b in itertools.pairwise(spans))


def test_one_trace_holds_the_planned_and_the_measured_step(recorded):
    problem, by_hand, timeline, peak_bytes = recorded
    trace = json.loads(json.dumps(side_by_side(problem, by_hand, timeline)))["traceEvents"]
    named = {e["pid"]: e["args"]["name"] for e in trace if e["name"] == "process_name"}
    assert named[1].endswith("(planned)") and named[2].endswith("(measured)")
    verdict = check(problem, by_hand.schedule, 1 << 60)
    planned = [e for e in trace if e["ph"] == "X" and e["pid"] == 1]
    assert len(planned) == len(verdict.events)
    assert {e["cat"] for e in planned} == {"forward", "recompute", "backward"}
    measured = [e for e in trace if e["ph"] == "X" and e["pid"] == 2]
    assert len(measured) == len(timeline.spans)
    counters = [e["args"] for e in trace if e["ph"] == "C" and e["name"] == "memory"]
    assert max(c["allocated_bytes"] for c in counters if "allocated_bytes" in c) == peak_bytes
    highest = max(e.resident_bytes for e in verdict.events)
    assert max(c["resident_bytes"] for c in counters if "resident_bytes" in c) == highest


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
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_snapshot_holds_the_steps_events():
    device = torch.device("cuda")
    snapshot = record_snapshot(lambda: torch.ones(1 << 20, device=device) + 1, device)
    actions = {e["action"] for trace in snapshot["device_traces"] for e in trace}
    assert {"alloc", "free_completed"} <= actions
