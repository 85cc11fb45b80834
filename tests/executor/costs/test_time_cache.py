"""Times measured by one run are there for the next, and only where they would be the same."""

from __future__ import annotations

import pytest
import torch

from loadmaster.executor.costs import profiled
from loadmaster.executor.costs.profiled import Profiler
from loadmaster.executor.costs.time_cache import KeptTimes, OperatorMeasurement, kept_times
from tests.executor.tape import Tape

aten = torch.ops.aten
CPU = torch.device("cpu")


@pytest.fixture
def runs(monkeypatch):
    """The operators that were measured anew."""
    found = []
    run = Profiler.run
    monkeypatch.setattr(Profiler, "run", lambda self, node: found.append(node) or run(self, node))
    return found


def product(rows=32):
    tape = Tape()
    return tape.call(aten.mm.default, tape.input(rows, 64), tape.input(64, 16))


def test_the_next_run_measures_what_is_new_only(runs):
    node, other = product(), product(33)
    first = profiled(CPU)
    expected = first.node_us(node), first.workspace_bytes(node), first.move_us(1 << 20)
    assert runs == [node]
    again = profiled(CPU, limit_s=0.0)  # no time to measure anything
    assert (again.node_us(node), again.workspace_bytes(node), again.move_us(1 << 20)) == expected
    profiled(CPU).node_us(other)
    assert runs == [node, other]


def test_other_settings_have_measurements_of_their_own(runs):
    node = product()
    profiled(CPU).node_us(node)
    profiled(CPU, compiled=True).node_us(node)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        profiled(CPU).node_us(node)
    finally:
        torch.set_float32_matmul_precision(before)
    assert runs == [node] * 3


def test_operators_of_others_are_measured_in_every_run(runs):
    @torch.library.custom_op("loadmaster_test::changing", mutates_args=())
    def changing(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    changing.register_fake(torch.empty_like)
    tape = Tape()
    node = tape.call(changing._opoverload, tape.input(7))
    for _ in range(2):
        profiled(CPU).node_us(node)
    assert runs == [node] * 2


def test_lines_that_say_nothing_are_passed_over():
    kept = kept_times(CPU, compiled=False, channels_last=False)
    kept.add("one", OperatorMeasurement(2, 3))
    good = kept.path.read_bytes()
    wrong = [good.replace(b"2.0", other) for other in (b"-1.0", b"NaN", b'"2"', b"[]")]
    kept.path.write_bytes(b"".join([b"{half a\n[]\n{}\n\xff\n", *wrong, good.replace(b": 3", b": -3")]))
    assert KeptTimes(kept.path).get("one") is None
    kept.path.write_bytes(b"{half a\n" + good.replace(b"2.0", b"5.0") + good)
    assert KeptTimes(kept.path).get("one") == OperatorMeasurement(2.0, 3)


def test_a_folder_that_cannot_be_made_costs_the_next_measurement_only(tmp_path, monkeypatch, runs):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LOADMASTER_MEASUREMENT_CACHE", str(tmp_path / "file" / "folder"))
    node = product()
    for _ in range(2):
        assert profiled(CPU).node_us(node) > 0
    assert runs == [node] * 2
