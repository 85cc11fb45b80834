"""A machine that reads host memory wrongly, or slowly, is found out, and the log says so."""

from __future__ import annotations

import itertools
import logging

import pytest
import torch

from loadmaster.executor.graph.features import canaries

CPU = torch.device("cpu")


def right(table, index):
    return torch.index_select(table, 0, index)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda table, index: torch.zeros_like(right(table, index)),
        lambda table, index: right(table, index).roll(1, 0),
        lambda table, index: right(table, index).roll(1, 1),
        lambda table, index: right(table, (index + 1) % table.shape[0]),
    ],
)
def test_canaries_find_rows_that_arrive_as_something_else(wrong):
    table = canaries.canary_table(CPU)
    assert canaries.differing_rows(table, CPU, right) == 0
    assert canaries.differing_rows(table, CPU, wrong) > 32


def test_canaries_hold_nans_for_what_they_are():
    table = torch.full((3, 2), float("nan"))
    assert canaries.differing_rows(table, CPU, right) == 0
    assert canaries.differing_rows(torch.zeros(3), CPU, right) == 0


def test_rows_gathered_by_the_processor_are_the_rows():
    table, index = torch.randn(6, 3), torch.tensor([5, -6, 2])
    assert torch.equal(canaries.by_processor(table, index, CPU), table[index])


@pytest.mark.parametrize(
    ("kernel_s", "processor_s", "slower"), [(1.0, 2.0, False), (1.0, 1.0, False), (2.0, 1.0, True)]
)
def test_the_faster_way_is_taken(kernel_s, processor_s, slower):
    times = itertools.cycle([kernel_s, processor_s])
    ways = [lambda: torch.zeros(1), lambda: torch.zeros(1)]
    assert bool(canaries.slower_than_processor(lambda way: next(times), ways)) == slower


@pytest.mark.parametrize("broken", [True, False])
def test_the_log_says_when_rows_are_not_read_in_place(broken, monkeypatch, caplog):
    def gather(table, index):
        return torch.zeros_like(table[index]) if broken else table[index]

    monkeypatch.setattr(canaries, "by_kernel", gather)
    monkeypatch.setattr(canaries, "has_triton", lambda: True)
    canaries._broken.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert canaries.reads_in_place(torch.ones(4, 2), CPU) is not broken
    canaries._broken.cache_clear()
    assert ("arrived as something else" in caplog.text) == broken


def test_a_kernel_that_does_not_run_leaves_it_to_the_processor(monkeypatch, caplog):
    def gather(table, index):
        raise ValueError("Pointer argument cannot be accessed")

    monkeypatch.setattr(canaries, "by_kernel", gather)
    monkeypatch.setattr(canaries, "has_triton", lambda: True)
    canaries._broken.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert not canaries.reads_in_place(torch.ones(4, 2), CPU)
    canaries._broken.cache_clear()
    assert "did not run: Pointer" in caplog.text


def test_without_triton_the_processor_gathers(monkeypatch, caplog):
    monkeypatch.setattr(canaries, "has_triton", lambda: False)
    canaries._broken.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert not canaries.reads_in_place(torch.ones(4, 2), CPU)
    canaries._broken.cache_clear()
    assert "Triton is not installed" in caplog.text
