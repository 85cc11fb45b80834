"""The planned memory snapshot: bytes as the checker counts them, in the form that PyTorch's own tools read."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.api.report.memory.snapshot import memory_snapshot, snapshot_bytes
from loadmaster.api.report.memory.view import MemoryView, view
from loadmaster.models.kinds import read_problem
from loadmaster.models.memory import plain
from loadmaster.models.memory.presets import chain
from tests.api.cli.plans_by_hand import MEGABYTE, plan_by_hand
from tests.models.memory.instances import random_problem


def plain_view(seed: int) -> MemoryView:
    problem = random_problem(seed, operators=5, in_place=0.0)
    plan = plan_by_hand(chain(2, MEGABYTE), 1 << 40)
    schedule = plain.formulate(problem)
    changes = {"problem_sha256": problem.sha256, "schedule": schedule}
    return view(problem, type(plan)(**(plan.__dict__ | changes)))


def chain_view() -> MemoryView:
    document = chain(6, MEGABYTE)
    return view(read_problem(document), plan_by_hand(document, 1 << 40))


def replay(snapshot: dict[str, Any]) -> Iterator[tuple[int, int, dict[int, int]]]:
    """(time, allocated bytes, blocks) after every event, from what the last state and the events say is there first."""
    (segment,), (trace,) = snapshot["segments"], snapshot["device_traces"]
    at_end = {b["address"]: b["size"] for b in segment["blocks"] if b["state"] == "active_allocated"}
    made = {e["addr"] for e in trace if e["action"] == "alloc"}
    blocks = {address: size for address, size in at_end.items() if address not in made}
    for e in trace:
        if e["action"] == "alloc":
            assert e["addr"] not in blocks
            blocks[e["addr"]] = e["size"]
        elif e["action"] == "free_completed":
            assert blocks.pop(e["addr"]) == e["size"]
        yield e["time_us"], sum(blocks.values()), dict(blocks)
    assert blocks == at_end


@settings(deadline=None)
@given(seed=st.integers(0, 10**6))
def test_the_highest_bytes_are_those_of_the_replay(seed: int) -> None:
    seen = plain_view(seed)
    levels = [size for _, size, _ in replay(memory_snapshot(seen))]
    assert max(levels) == max(e.resident_bytes for e in seen.check.events)


def test_bytes_at_every_operator_are_those_of_the_replay() -> None:
    seen = chain_view()
    levels = {time: [s for _, s, _ in steps][-1] for time, steps in by_time(memory_snapshot(seen))}
    expected = {int(e.start_us): e.resident_bytes for e in seen.check.events}
    current = None
    for time, size in expected.items():
        current = levels.get(time, current)
        assert current == size


def by_time(snapshot: dict[str, Any]) -> Iterator[tuple[int, list[tuple[int, int, dict[int, int]]]]]:
    for time, steps in itertools.groupby(replay(snapshot), key=lambda step: step[0]):
        yield time, list(steps)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10**6))
def test_blocks_lie_in_the_segment_and_never_overlap(seed: int) -> None:
    snapshot = memory_snapshot(plain_view(seed))
    (segment,) = snapshot["segments"]
    assert sum(b["size"] for b in segment["blocks"]) == segment["total_size"]
    for _, _, blocks in replay(snapshot):
        end = segment["address"]
        for address, size in sorted(blocks.items()):
            assert address >= end
            end = address + size
        assert end <= segment["address"] + segment["total_size"]


def test_pytorchs_own_tools_read_it() -> None:
    tools = pytest.importorskip("torch.cuda._memory_viz")
    snapshot = pickle.loads(snapshot_bytes(chain_view()))
    assert "gradients, workspace" in tools.memory(snapshot, format_flamegraph=lambda text: text)
    assert tools.segsum(snapshot)
    assert tools.trace(snapshot)
    assert "<html" in tools.trace_plot(snapshot).lower()
