"""A measured step's timeline: what ran, bytes as the allocator counts them, one trace with the planned step."""

from __future__ import annotations

import itertools
import json

import pytest
import torch

from loadmaster.executor import apply, capture, measure
from loadmaster.executor.memory.fit.report import side_by_side
from loadmaster.executor.steps.timeline import record
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
    times = [at for at, _ in timeline.levels]
    assert times == sorted(times) and times[-1] >= max(s.start_us + s.duration_us for s in timeline.spans)
    assert timeline.levels[:-1] == list(timeline.memory)


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
