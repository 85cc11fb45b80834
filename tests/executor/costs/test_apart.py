"""What may end a process is measured in another one, and its end costs that one measurement."""

from __future__ import annotations

import logging
import os
import subprocess

import pytest
import torch

from loadmaster.executor.costs import apart
from loadmaster.executor.costs.apart import measured_apart
from loadmaster.executor.costs.profiled import Profiler
from loadmaster.executor.costs.roofline import roofline
from loadmaster.executor.costs.time_cache import OperatorMeasurement
from tests.executor.costs.deadly_operators import deadly, fine, raising
from tests.executor.tape import Tape

CPU = torch.device("cpu")
OPTIONS = {"compiled": False, "channels_last": False}


@torch.library.custom_op("loadmaster_test_apart::hidden", mutates_args=())
def hidden(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


hidden.register_fake(torch.empty_like)


@pytest.mark.slow
def test_a_death_costs_one_measurement_and_is_told_once(monkeypatch, caplog):
    monkeypatch.setattr(Profiler, "_is_run_here", lambda self, node: node.target is torch.ops.aten.relu.default)
    tape = Tape()
    x = tape.input(300, 20)
    nodes = [
        tape.call(op._opoverload, x, *rest) for op, rest in ((fine, (2,)), (deadly, ()), (raising, ()), (fine, (3,)))
    ]
    again = tape.call(deadly._opoverload, tape.input(3))
    relu = tape.call(torch.ops.aten.relu.default, x)
    profiler = Profiler(CPU, 60.0)
    with caplog.at_level(logging.WARNING, "loadmaster"):
        times = [profiler.node_us(node) for node in (*nodes, again, relu)]
    assert all(time > 0 for time in times)
    measured = [profiler._measure(node) for node in (*nodes, again)]
    assert [found is not None for found in measured] == [True, False, False, True, False]
    told = [record.getMessage() for record in caplog.records if record.name.startswith("loadmaster.executor")]
    assert sum("loadmaster_deadly::deadly is priced by a formula" in line for line in told) == 1
    assert sum("loadmaster_deadly::raising" in line and "whatever an operator raises" in line for line in told) == 1
    assert len(told) == 2
    assert not os.path.exists("core")


def test_a_child_that_does_not_end_is_ended(monkeypatch):
    """As subprocess has it: a child that takes too long is killed, and what it had written by then is there."""

    def run(command, *, stdout, timeout, **_):
        stdout.write(b"[2.5, 7]\n[1.0")
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(apart, "MOST_CHILDREN", 1)
    tape = Tape()
    nodes = [tape.call(fine._opoverload, tape.input(3), times) for times in range(3)]
    first, stuck, after = measured_apart(nodes, CPU, 10.0, OPTIONS)
    assert first == OperatorMeasurement(2.5, 7)
    assert "did not end within 100 s" in stuck
    assert "ended" in after


def test_children_share_one_limit(monkeypatch):
    """Each has its time to begin; beyond that the next one has what is left."""
    clock, allowed = [0.0], []

    def run(command, *, timeout, **_):
        allowed.append(timeout)
        clock[0] += timeout
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(apart.time, "monotonic", lambda: clock[0])
    tape = Tape()
    measured_apart([tape.call(fine._opoverload, tape.input(3), times) for times in range(3)], CPU, 10.0, OPTIONS)
    assert allowed == [apart.BEGIN_S + 10.0, apart.BEGIN_S, apart.BEGIN_S]


def test_an_operator_of_a_script_has_no_module_to_import(monkeypatch):
    """A child must not run the user's script again."""
    monkeypatch.setattr(hidden._init_fn, "__module__", "__main__")
    assert apart._modules("loadmaster_test_apart::hidden") == ("loadmaster_test_apart",)


def test_what_cannot_be_sent_is_not_measured(monkeypatch):
    monkeypatch.setattr(apart, "_asked", lambda *_: pytest.fail("there is nothing to ask"))
    tape = Tape()
    node = tape.call(fine._opoverload, tape.input(3), 1)
    node.args = (node.args[0], lambda: None)
    (found,) = measured_apart([node], CPU, 1.0, OPTIONS)
    assert "cannot be sent" in found


def test_what_is_not_understood_is_priced_by_a_formula_and_told_once(caplog):
    tape = Tape()
    node, other = (
        tape.call(torch.ops.aten._convert_indices_from_coo_to_csr.default, tape.input(n, dtype=torch.int64), 7)
        for n in (5, 6)
    )
    profiler = Profiler(CPU, 60.0)
    with caplog.at_level(logging.WARNING, "loadmaster"):
        assert [profiler.node_us(n) for n in (node, other)] == [roofline("cpu").node_us(n) for n in (node, other)]
    (record,) = caplog.records
    assert "aten::_convert_indices_from_coo_to_csr is priced by a formula" in record.getMessage()
    assert "'self'" in record.getMessage()
