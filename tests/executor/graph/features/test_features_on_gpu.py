"""On a CUDA device: rows, tables and files, hot rows and the loader give what PyTorch gives."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from loadmaster.errors import InputError
from loadmaster.executor.graph import FeatureLoader, HotRows, UnifiedTensor, unified, unified_file
from loadmaster.executor.graph.features.canaries import by_kernel, by_processor, canary_table, differing_rows
from loadmaster.executor.graph.features.gather import gather_rows
from loadmaster.executor.graph.features.host_memory import is_mapped

pytestmark = pytest.mark.gpu
GPU = torch.device("cuda", 0)


@pytest.mark.parametrize("width", [1, 11, 32, 64, 100, 128, 343, 513, 1024])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.int8])
def test_rows_arrive_as_they_are(width, dtype):
    host = torch.randint(-100, 100, (5000, width)).to(dtype)
    table = unified(host, device=GPU)
    assert is_mapped(table.data_ptr()) and table.in_place
    index = torch.randint(-5000, 5000, (3001,))
    found = table[index.to(GPU)]
    assert type(found) is torch.Tensor and found.device == GPU
    assert torch.equal(found.cpu(), host[index])


def test_every_operator_that_reads_rows():
    host = torch.randn(100, 7)
    table, index = unified(host, device=GPU), torch.randint(0, 100, (5, 3))
    there = index.to(GPU)
    for found, want in (
        (table[there], host[index]),
        (table[index], host[index]),
        (table[:, 1:4][there], host[:, 1:4][index]),
        (F.embedding(there, table), F.embedding(index, host)),
        (table.index_select(0, there[0]), host.index_select(0, index[0])),
        (torch.gather(table, 0, there), torch.gather(host, 0, index)),
        (table[there, there % 7], host[index, index % 7]),
        (table[:, there[0] % 7], host[:, index[0] % 7]),
    ):
        assert found.is_cuda and torch.equal(found.cpu(), want)


def test_the_rules_of_placement():
    host, one = torch.randn(10, 4), torch.ones(4, device=GPU)
    table = unified(host, device=GPU)
    assert (table * 2).is_cuda and (table + one).is_cuda and table.to("cuda").is_cuda
    kept = table.with_affinity("host") * 2
    assert isinstance(kept, UnifiedTensor) and is_mapped(kept.data_ptr())
    assert (table.with_affinity("host") + one).is_cuda
    with pytest.raises(InputError, match="no device that reads them all"):
        torch.where(one > 0, table, host)
    torch.testing.assert_close((table @ one).cpu(), host.sum(1))


def test_out_of_range_gives_zeros_unless_debugged():
    host = torch.ones(10, 4)
    assert unified(host, device=GPU)[torch.tensor([10, 0], device=GPU)].tolist() == [[0.0] * 4, [1.0] * 4]
    with pytest.raises(InputError, match="10 rows"):
        unified(host, device=GPU, debug=True)[torch.tensor([10], device=GPU)]


def test_ordinary_memory_is_refused():
    with pytest.raises(InputError, match="ordinary memory"):
        gather_rows(torch.ones(4, 4), torch.tensor([1], device=GPU))


def test_canaries_live_and_both_ways_agree():
    table = canary_table(GPU)
    assert differing_rows(table, GPU, by_kernel) == 0
    assert differing_rows(table, GPU, lambda table, index: by_processor(table, index.cpu(), GPU)) == 0


@pytest.mark.parametrize("suffix", [".npy", ".bin"])
def test_files_are_read(suffix, tmp_path):
    array = np.random.default_rng(0).standard_normal((3000, 33), dtype=np.float32)
    path = tmp_path / f"features{suffix}"
    np.save(path, array) if suffix == ".npy" else path.write_bytes(array.tobytes())
    table = unified_file(path, (3000, 33), torch.float32, device=GPU)
    index = torch.randint(0, 3000, (999,))
    assert torch.equal(table[index.to(GPU)].cpu(), torch.from_numpy(array)[index])


def test_lazy_conjugates_arrive_as_they_are():
    host = torch.randn(50, 3, dtype=torch.complex64)
    index = torch.randint(0, 50, (40,))
    for table, want in (
        (unified(host, device=GPU).conj(), host.conj()),
        (unified(host.conj(), device=GPU), host.conj()),
    ):
        assert torch.equal(table[index.to(GPU)].cpu(), want[index])


def test_out_of_range_is_an_error_where_the_processor_gathers():
    table = torch.ones(10, 4).pin_memory()
    assert gather_rows(table, torch.tensor([9, -10], device=GPU), False).is_cuda
    with pytest.raises(InputError, match="10 rows"):
        gather_rows(table, torch.tensor([10], device=GPU), False)


def test_memory_goes_back_when_the_last_view_does():
    table = unified(torch.ones(1000, 100), device=GPU)
    view = table[10:20].cpu_view
    del table
    gc.collect()
    assert is_mapped(view.data_ptr()) and bool((view == 1).all())


def test_pinned_memory_is_read_in_place_too():
    host = torch.randn(500, 9).pin_memory()
    index = torch.randint(0, 500, (300,))
    assert torch.equal(gather_rows(host, index.to(GPU)).cpu(), host[index])


def test_a_file_may_be_copied_to_be_written_to(tmp_path):
    np.save(tmp_path / "features.npy", np.ones((100, 5), np.float32))
    table = unified(unified_file(tmp_path / "features.npy", device=GPU).cpu_view, device=GPU)
    table.mul_(2)
    assert table[torch.tensor([3], device=GPU)].tolist() == [[2.0] * 5]


def test_copies_to_and_from_a_table_leave_it_on_the_host():
    host = torch.randn(100_000, 64)
    table, index = unified(host, device=GPU), torch.randint(0, 100_000, (5000,))
    there = table.to("cuda")
    table.copy_(there + 1)
    assert torch.equal(table[index.to(GPU)].cpu(), (host + 1)[index])
    table.cpu_view.sub_(1)
    assert torch.allclose(table[index.to(GPU)].cpu(), host[index], atol=1e-6)


def test_hot_rows_come_from_either_side():
    host = torch.randn(4000, 100)
    hot = torch.randperm(4000)[:1000]
    rows = HotRows(unified(host, device=GPU), hot)
    index = torch.randint(0, 4000, (5000,))
    assert torch.equal(rows[index.to(GPU)].cpu(), host[index])
    assert rows.hit_rate() == float(torch.isin(index, hot).double().mean())


@pytest.mark.parametrize("prefetch", [1, 3])
def test_batches_hold_their_rows_while_steps_are_queued(prefetch):
    """Steps that are slower than the loader: memory that was handed out too early would change what they read."""
    host = torch.arange(20000, dtype=torch.float32)[:, None].expand(-1, 64).contiguous()
    table, slow = unified(host, device=GPU), torch.randn(2048, 2048, device=GPU)

    def sample(seeds):
        return None, seeds * 1

    seeds, wrong = torch.arange(20000, device=GPU), torch.zeros((), device=GPU)
    for batch in FeatureLoader(seeds, sample, table, table, batch_size=512, shuffle=False, prefetch=prefetch):
        for _ in range(10):
            slow = torch.tanh(slow @ slow)
        wrong += (batch.features != batch.seeds[:, None]).sum() + (batch.labels != batch.seeds[:, None]).sum()
    assert int(wrong) == 0
