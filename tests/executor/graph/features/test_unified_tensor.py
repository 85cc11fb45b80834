"""Unified tensors give what ordinary tensors give, where the rules say, and refuse what they cannot do."""

from __future__ import annotations

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.graph import UnifiedTensor, unified, unified_empty
from loadmaster.executor.graph.features import making, unified_tensor
from loadmaster.executor.graph.features.gather import gather_rows, rows_are_contiguous

CPU = "cpu"


def table(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def plain(tensor: Tensor) -> Tensor:
    return tensor.cpu_view if isinstance(tensor, UnifiedTensor) else tensor


ROWS = torch.tensor([[3, -1], [0, 3]])
COLUMNS = torch.tensor([1, 0])
READS = {
    "an index": lambda t: t[ROWS],
    "an int32 index": lambda t: t[ROWS.int()],
    "a list": lambda t: t[[2, 1]],
    "a mask of rows": lambda t: t[torch.tensor([True, False, True, False, True])],
    "a mask of elements": lambda t: t[torch.eye(5, 4, dtype=torch.bool)],
    "rows and columns": lambda t: t[ROWS, COLUMNS],
    "columns": lambda t: t[:, COLUMNS],
    "rows of a slice": lambda t: t[1:, 1:3][COLUMNS],
    "rows of the transposed": lambda t: t.t()[COLUMNS],
    "no rows": lambda t: t[COLUMNS[:0]],
    "index_select of rows": lambda t: t.index_select(0, COLUMNS),
    "index_select of columns": lambda t: torch.index_select(t, 1, COLUMNS),
    "embedding": lambda t: F.embedding(ROWS.abs(), t),
    "gather along rows": lambda t: torch.gather(t, 0, ROWS.abs()),
    "gather along columns": lambda t: t.gather(-1, ROWS.abs()),
    "take_along_dim": lambda t: torch.take_along_dim(t, ROWS[:, :1].abs(), 0),
}
OTHERS = {
    "arithmetic": lambda t: t * t + 1,
    "a cast": lambda t: t.half(),
    "a reduction": lambda t: t.mean(0),
    "cat": lambda t: torch.cat([t, t]),
    "zeros_like": torch.zeros_like,
    "clone": lambda t: t.clone(),
}


@pytest.mark.parametrize("name", READS)
def test_rows_read_with_gpu_affinity_are_ordinary_tensors(name):
    host = table(5, 4)
    found = READS[name](unified(host, device=CPU))
    assert not isinstance(found, UnifiedTensor)
    assert torch.equal(found, READS[name](host))


@pytest.mark.parametrize("name", [*READS, *OTHERS])
def test_with_host_affinity_results_stay_unified(name):
    host, call = table(5, 4), (READS | OTHERS)[name]
    found = call(unified(host, "host", CPU))
    assert isinstance(found, UnifiedTensor) and found.affinity == "host"
    assert torch.equal(plain(found), call(host))


@pytest.mark.parametrize("name", OTHERS)
def test_other_operators_with_gpu_affinity_give_ordinary_tensors(name):
    host = table(5, 4)
    found = OTHERS[name](unified(host, device=CPU))
    assert not isinstance(found, UnifiedTensor)
    assert torch.equal(found, OTHERS[name](host))


def test_a_cpu_tensor_beside_it_keeps_the_result_on_the_host():
    host = table(5, 4)
    for affinity in ("gpu", "host"):
        found = unified(host, affinity, CPU) + host
        assert isinstance(found, UnifiedTensor) and found.affinity == affinity
    assert not isinstance(unified(host, device=CPU) + torch.tensor(1.0), UnifiedTensor)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_index_reads_what_pytorch_reads(data):
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    host = table(*shape, dtype=data.draw(st.sampled_from([torch.float16, torch.float32, torch.int64])))
    size = data.draw(st.lists(st.integers(0, 3), max_size=2))
    index = tuple(
        torch.randint(-n, n, size) if size else torch.randint(-n, n, (2,))
        for n in shape[: data.draw(st.integers(1, len(shape)))]
    )
    assert torch.equal(unified(host, device=CPU)[index], host[index])


def test_lazy_conjugates_are_read_as_what_they_mean():
    """Rows of one do not lie in memory as they are read: a kernel must not copy them."""
    host = torch.complex(table(5, 4), table(5, 4) + 1)
    for lazy in (lambda t: t.conj(), lambda t: t.conj().imag):
        assert torch.equal(plain(lazy(unified(host, device=CPU))[COLUMNS]), lazy(host)[COLUMNS])
        assert not rows_are_contiguous(lazy(host))


def test_views_share_memory_and_stay_unified():
    whole = unified(table(5, 4), device=CPU)
    for view in (whole[1], whole[1:3], whole.t(), whole.view(-1), whole.detach(), whole.split(2)[1]):
        assert isinstance(view, UnifiedTensor)
        assert view.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()


def test_affinity_changes_without_moving_anything():
    whole = unified(table(5, 4), "host", CPU)
    turned = whole.with_affinity("gpu")
    assert turned.affinity == "gpu" and whole.affinity == "host"
    assert turned.data_ptr() == whole.data_ptr()


def test_writing_happens_in_place_on_the_host():
    host = table(5, 4)
    whole = unified(host, device=CPU)
    assert whole.mul_(2) is whole
    whole[1] = 0.0
    whole[torch.tensor([3])] = host[:1]
    want = host * 2
    want[1], want[3] = 0.0, host[0]
    assert torch.equal(whole.cpu_view, want)
    ordinary = torch.zeros(5, 4, dtype=torch.float64)
    assert ordinary.copy_(whole) is ordinary and torch.equal(ordinary, want)


def test_what_was_made_is_a_copy_of_its_source():
    host = table(5, 4)
    whole = unified(host, device=CPU)
    host.zero_()
    assert bool(whole.cpu_view.any())


def test_gradients_reach_the_other_operands():
    host, weights = table(5, 4), [table(4, 2).requires_grad_() for _ in range(2)]
    (unified(host, device=CPU) @ weights[0]).pow(2).sum().backward()
    (host @ weights[1]).pow(2).sum().backward()
    torch.testing.assert_close(weights[0].grad, weights[1].grad)


def test_an_explicit_device_gives_an_ordinary_tensor():
    assert type(unified(table(5, 4), device=CPU).to("meta")) is Tensor
    assert type(torch.ones_like(unified(table(5, 4), "host", CPU), device=CPU)) is Tensor


def test_it_is_saved_as_an_ordinary_tensor():
    buffer = io.BytesIO()
    torch.save(unified(table(5, 4), device=CPU), buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer), table(5, 4))


def test_a_deep_copy_is_unified_in_memory_of_its_own():
    whole = unified(table(5, 4), "host", CPU)
    twin = copy.deepcopy(whole)
    whole.zero_()
    assert twin.affinity == "host" and torch.equal(twin.cpu_view, table(5, 4))


def test_it_says_what_it_is_without_its_contents():
    whole = unified_empty((3, 2), torch.float16, device=CPU)
    assert repr(whole) == "UnifiedTensor(shape=[3, 2], dtype=torch.float16, affinity='gpu', result_device='cpu')"
    assert whole.is_unified and not whole.requires_grad


def test_gathering_is_an_operator_that_compilers_see():
    torch.library.opcheck(gather_rows, (table(5, 4), torch.tensor([1, 1, -2])))
    torch.library.opcheck(gather_rows, (table(5), torch.tensor([], dtype=torch.int64)))


@pytest.mark.parametrize("ask", [lambda t: t.requires_grad_(), lambda t: torch.nn.Parameter(t)])
def test_a_gradient_is_refused(ask):
    with pytest.raises(InputError, match="requires_grad"):
        ask(unified(table(5, 4), device=CPU))
    whole = unified(table(5, 4), device=CPU)
    with pytest.raises(InputError, match="requires_grad"):
        whole.requires_grad = True
    with pytest.raises(InputError, match="requires_grad"):
        unified(table(5, 4).requires_grad_(), device=CPU)


def test_rows_out_of_range_are_refused():
    for debug in (False, True):
        whole = unified(table(5, 4), device=CPU, debug=debug)
        for index in (torch.tensor([5]), torch.tensor([-6])):
            with pytest.raises(InputError, match="a table of 5 rows"):
                whole[index]
        with pytest.raises(InputError, match="a table of 20 rows"):
            whole[torch.tensor([0, 0]), torch.tensor([0, 4])]


def test_an_index_of_no_rows_is_refused():
    whole = unified(table(5, 4), device=CPU)
    with pytest.raises(InputError, match="int64 or int32"):
        whole.rows(torch.tensor([1.0]))
    with pytest.raises(IndexError):
        whole[torch.tensor([1.0])]
    with pytest.raises(InputError, match="rows that lie in one piece"):
        gather_rows(table(5, 4).t(), torch.tensor([0]))


@pytest.mark.parametrize("device", ["cuda:7", "mps", "no such"])
def test_a_device_that_is_not_there_is_refused(device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="device"):
        unified(table(5, 4), device=device)


def test_sparse_tensors_and_unknown_affinities_are_refused():
    with pytest.raises(InputError, match="dense"):
        unified(table(5, 4).to_sparse(), device=CPU)
    with pytest.raises(InputError, match="affinity"):
        unified(table(5, 4), "cuda", CPU)
    with pytest.raises(InputError, match="affinity"):
        unified(table(5, 4), device=CPU).with_affinity("here")


def test_cuda_and_cpu_operands_together_are_refused():
    with pytest.raises(InputError, match="no device that reads them all"):
        making.UnifiedTensor.__torch_dispatch__(
            torch.ops.aten.where.self,
            (UnifiedTensor,),
            (FakeCuda(torch.ones(5, 4, dtype=torch.bool)), unified(table(5, 4), device=CPU), table(5, 4)),
        )


class FakeCuda(Tensor):
    """A host tensor that says it is on a GPU."""

    is_cuda = True

    @staticmethod
    def __new__(cls, value):
        return torch.Tensor._make_subclass(cls, value)


def test_a_view_with_rows_of_another_length_is_tried_once(monkeypatch):
    tried = []

    def slower(host, device):
        tried.append(tuple(host.shape))
        return False

    monkeypatch.setattr(unified_tensor, "reads_in_place", slower)
    table = UnifiedTensor(torch.ones(8, 6), affinity="gpu", result_device=torch.device("cuda", 0), in_place=True)
    assert table[2:].in_place and table.with_affinity("host").in_place
    assert tried == []
    narrow = table.view(16, 3)
    assert tried == []
    assert not narrow.in_place and not narrow[4:].in_place and not table.view(16, 3).in_place
    assert tried == [(16, 3)]


def test_what_a_small_view_says_does_not_stand_for_a_large_one(monkeypatch):
    tried = []
    monkeypatch.setattr(unified_tensor, "TRIED_FROM_BYTES", 100)
    monkeypatch.setattr(unified_tensor, "reads_in_place", lambda host, _: tried.append(len(host)) or len(host) < 8)
    table = UnifiedTensor(torch.ones(8, 6), affinity="gpu", result_device=torch.device("cuda", 0), in_place=True)
    narrow = table.view(16, 3)
    assert narrow[:4].in_place and not narrow.in_place and narrow[:2].in_place
    assert tried == [4, 16]
