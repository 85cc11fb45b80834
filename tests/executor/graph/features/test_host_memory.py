"""Memory for tables: CUDA's managed memory that stays on the host, page-locked memory where there is none."""

from __future__ import annotations

import gc
import logging

import pytest
import torch

from loadmaster.errors import InputError
from loadmaster.executor.graph.features.host_memory import PAGE_BYTES, expect_readable, host_empty
from tests.executor.graph.features.fake_cuda import Driver, Registry

GPU = torch.device("cuda", 0)
# What cuda.h calls them: concurrent managed access, a preferred location, accessed by, the processor.
CONCURRENT, PREFERRED, ACCESSED_BY, HOST = 89, 3, 5, -1


def test_a_table_is_whole_pages_on_the_host_that_the_device_reads(monkeypatch):
    driver = Driver()
    driver.install(monkeypatch)
    table = host_empty((300_000, 3), torch.float16, GPU)
    assert table.shape == (300_000, 3) and table.dtype == torch.float16 and table.is_contiguous()
    assert driver.calls == [
        ("cuDeviceGet", 0),
        ("cuDeviceGetAttribute", CONCURRENT, 0),
        ("cuMemAllocManaged", PAGE_BYTES, 1),
        ("cuMemAdvise", PAGE_BYTES, PREFERRED, HOST),
        ("cuMemAdvise", PAGE_BYTES, ACCESSED_BY, 0),
    ]
    assert len(driver.memory) == 1
    expect_readable(table[100:], GPU)
    with pytest.raises(InputError, match="ordinary memory"):
        expect_readable(torch.zeros(3), GPU)


@pytest.mark.slow
def test_it_is_given_back_once_with_its_last_view(monkeypatch):
    driver = Driver()
    driver.install(monkeypatch)
    table = host_empty((1000, 33), torch.float32, GPU).fill_(2.0)
    view = table[5:]
    del table
    gc.collect()
    assert driver.memory and bool((view == 2.0).all())
    del view
    gc.collect()
    assert not driver.memory and driver.calls.count(("cuMemFree_v2",)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("failing", ["cuMemAllocManaged", "cuMemAdvise", ""])
def test_without_managed_memory_it_is_locked_and_the_log_says_so(failing, monkeypatch, caplog):
    Driver(failing, concurrent=int(failing != "")).install(monkeypatch)
    registry = Registry(0)
    registry.install(monkeypatch)
    with caplog.at_level(logging.WARNING):
        table = host_empty((1000, 33), torch.float16, GPU)
    assert (f"{failing}: out of memory" if failing else "at the same time") in caplog.text
    assert table.shape == (1000, 33) and table.data_ptr() % 4096 == 0
    assert registry.registered == [(table.data_ptr(), 66000, 3)]
    view = table.fill_(2.0)[5:]
    del table
    gc.collect()
    assert registry.given_back == [] and bool((view == 2.0).all())
    del view
    gc.collect()
    assert registry.given_back == [registry.registered[0][0]]


def test_what_was_had_before_a_failure_is_given_back(monkeypatch):
    driver = Driver("cuMemAdvise")
    driver.install(monkeypatch)
    Registry(0).install(monkeypatch)
    host_empty((10,), torch.float32, GPU)
    assert not driver.memory


def test_memory_that_cannot_be_had_is_an_error(monkeypatch):
    Driver("cuMemAllocManaged").install(monkeypatch)
    with pytest.raises(InputError, match="ulimit"):
        host_empty((10,), torch.float32, GPU)


def test_more_than_the_machine_has_is_refused_before_it_is_asked_for(monkeypatch):
    driver = Driver()
    driver.install(monkeypatch)
    with pytest.raises(InputError, match="the host has"):
        host_empty((1 << 50,), torch.float32, GPU)
    assert driver.calls == []


def test_nothing_and_memory_for_the_host_are_ordinary():
    assert host_empty((0, 5), torch.float32, GPU).shape == (0, 5)
    assert host_empty((2, 5), torch.float32, torch.device("cpu")).shape == (2, 5)
