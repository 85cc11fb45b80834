"""What is sent, what is not, in which order it comes back, and what happens when stores are slow or fail."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from loadmaster.errors import InputError, LoadmasterError
from loadmaster.executor import TensorCache
from loadmaster.executor.placement.cache import tensor_cache
from loadmaster.executor.placement.cache.adaptive import Plan
from loadmaster.executor.placement.cache.backends.host import HostMemory
from loadmaster.executor.placement.cache.parts import Part
from loadmaster.executor.placement.cache.traffic import Traffic
from loadmaster.executor.steps.pinned import HostPool
from tests.executor.placement.cache.fake_backends import Held
from tests.executor.placement.cache.small_models import LEAST, batch, blocks, expect_equal, gradients

MODIFIED = "one of the variables needed for gradient computation has been modified by an inplace operation"
WIDE = 64


class Chain(nn.Module):
    """Saves the output of every tanh, and nothing else: [4, 64] float32, 1024 bytes each."""

    def forward(self, x: torch.Tensor, count: int = 6) -> torch.Tensor:
        for _ in range(count):
            x = x.tanh()
        return x


def start() -> torch.Tensor:
    return torch.linspace(-1, 1, 4 * WIDE).view(4, WIDE).requires_grad_()


def cache_of(backend: object, **options: object) -> TensorCache:
    return TensorCache(Chain(), backend, **{"keep": 0, "min_bytes": LEAST, "window": 1 << 20, **options})


def test_a_slow_place_is_not_waited_for_by_those_who_still_have_the_tensor() -> None:
    backend, x = Held(), start()
    with cache_of(backend) as cache:
        y = Chain()(x)
        assert len(backend.stores) == 6
        y.sum().backward()
    stats = cache.stats()
    assert backend.waits == 0 and not backend.loads
    assert stats.forwarded_bytes == stats.cancelled_bytes == 6 * 1024 and not stats.offloaded_bytes
    assert all(copy.cancelled for copy in backend.stores)


def test_a_store_that_has_begun_is_not_cancelled_and_not_loaded() -> None:
    backend, x = Held(runs=True), start()
    with cache_of(backend) as cache:
        y = Chain()(x)
        y.sum().backward()
    assert not backend.loads and cache.stats().forwarded_bytes == 6 * 1024 and not cache.stats().cancelled_bytes
    assert not backend.freed  # they still read
    backend.finish()
    assert cache.stats().offloaded_bytes == 0 and len(backend.freed) == 6


def test_where_a_device_waits_nothing_is_held_after_the_backward_pass() -> None:
    backend, x = Held(runs=True, waits_on_device=True), start()
    with cache_of(backend) as cache:
        y = Chain()(x)
        assert backend.waits == 0
        y.sum().backward()
        assert backend.waits == len(backend.freed) == 6 and not backend.died_early
    assert cache.stats().offloaded_bytes == 0


def test_no_more_than_a_window_is_on_its_way() -> None:
    backend, x = Held(), start()
    with cache_of(backend, window=2 * 1024) as cache:
        y = Chain()(x)
        assert [copy.over() for copy in backend.stores] == [True] * 4 + [False] * 2
        assert cache.stats().offloaded_bytes == 4 * 1024
        y.sum().backward()
    assert cache.stats().loaded_bytes == 4 * 1024 and cache.stats().on_demand_bytes == 0


def test_tensors_come_back_in_reverse_order_ahead_of_their_use() -> None:
    backend, x = Held(), start()
    loaded: list[int] = []

    def note(gradient: torch.Tensor) -> None:
        loaded.append(len(backend.loads))

    with cache_of(backend, window=2 * 1024) as cache:
        y = Chain()(x, 3)
        y.register_hook(note)
        for _ in range(5):
            y = y.tanh()
            y.register_hook(note)
        backend.finish()
        y.sum().backward()
    # Hooks run just before the tensor of that step is needed: two are ahead of it at any time.
    assert loaded == [0, 3, 4, 5, 6, 7]
    assert [load.copy for load in backend.loads] == backend.stores[::-1]
    assert cache.stats().on_demand_bytes == 1024  # the first


@pytest.mark.parametrize(
    ("due", "expected"),
    [
        ((), [0, 1, 1, 1, 1, 2, 3, 4]),  # the window's alone
        ((0,) * 8, [0, 1, 1, 1, 1, 2, 3, 4]),
        ((4096,) * 8, [0, 4, 4, 4, 4, 4, 4, 4]),
        ((4096, 4096, 4096, 3072, 2048, 2048, 1024, 0), [0, 1, 1, 2, 2, 3, 4, 4]),
    ],
)
def test_what_is_due_comes_back_however_small_the_window(
    due: tuple[int, ...], expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_cache, "plan_to_keep", lambda sizes, keep: Plan(8, 4, 8 * 1024, (), due))
    backend, x, loaded = Held(), start(), list[int]()
    cache = cache_of(backend, keep=4 * 1024, window=1024)
    for _ in range(2):
        backend.loads.clear()
        loaded.clear()
        with cache:
            y = x
            for _ in range(8):
                y = y.tanh()
                y.register_hook(lambda _: loaded.append(len(backend.loads)))
            backend.finish()
            y.sum().backward()
    assert cache.stats().sent == (4, 8)
    assert loaded == expected


def test_without_memory_to_be_ahead_tensors_come_when_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, needed, refused = blocks(), set[Part](), list[Part]()
    plain = gradients(model)
    need, bring = TensorCache._need, Traffic.bring

    def note(self: TensorCache, traffic: Traffic, tape: object, use: int, part: Part) -> None:
        needed.add(part)
        need(self, traffic, tape, use, part)

    def scarce(self: Traffic, part: Part, tape: object) -> None:
        if part not in needed:
            refused.append(part)
            raise torch.OutOfMemoryError("CUDA out of memory")
        bring(self, part, tape)

    monkeypatch.setattr(TensorCache, "_need", note)
    monkeypatch.setattr(Traffic, "bring", scarce)
    cache = TensorCache(model, "host", keep=0, min_bytes=LEAST)
    expect_equal(gradients(model, cache), plain)
    assert refused and cache.stats().on_demand_bytes == cache.stats().loaded_bytes > 0


def test_passes_that_nobody_follows_back_are_no_part_of_the_next_one() -> None:
    backend, x = Held(), start()
    cache = cache_of(backend, keep=2 * 1024, window=0)
    for n in range(5):
        with cache:
            y = Chain()(x)
            if n % 2:
                y.sum().backward()
            del y
    assert cache.stats().sent == (4, 6) and len(backend.stores) == 6 + 4 * 4


def test_entering_a_micro_batch_again_begins_to_load() -> None:
    backend, x = Held(), start()
    with cache_of(backend, window=3 * 1024) as cache:
        with cache.microbatch("a"):
            y = Chain()(x)
        backend.finish()
        cache.stats()
        with cache.microbatch("a"):
            assert len(backend.loads) == 3
            y.sum().backward()
    assert cache.stats().on_demand_bytes == 0


def test_a_forward_pass_in_several_parts() -> None:
    """Entered again, a micro-batch may go on with its forward pass: what was brought back meanwhile does no harm."""
    backend, x = Held(), start()
    with cache_of(backend, window=2 * 1024) as cache:
        y = x
        for _ in range(4):
            with cache.microbatch("a"):
                y = Chain()(y, 4)
            backend.finish()
            cache.stats()
        with cache.microbatch("a"):
            y.sum().backward()
    ours, x.grad = x.grad, None
    Chain()(x, 16).sum().backward()
    assert torch.equal(ours, x.grad) and cache.stats().on_demand_bytes == 0 and not backend.died_early


def test_parameters_buffers_and_their_views_stay() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(WIDE, WIDE))
            self.frozen = nn.Parameter(torch.randn(WIDE, WIDE), requires_grad=False)
            self.register_buffer("table", torch.randn(4, WIDE))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (((x @ self.weight.t()) @ self.weight[:, :]) @ self.frozen.t()) * self.table * self.table[1]

    backend, model = Held(), Model()
    held = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    with TensorCache(model, backend, keep=0, min_bytes=LEAST):
        y = model(start())
        sources = {copy.storage_address for copy in backend.stores}
        assert len(sources) == 2 and not sources & held  # x and the first product
        y.sum().backward()
    model.weight.data = torch.randn(WIDE, WIDE)  # another storage: known when the cache is entered
    backend.stores.clear()
    with TensorCache(model, backend, keep=0, min_bytes=LEAST) as cache:
        model(start()).sum().backward()
        model.weight.data = torch.randn(WIDE, WIDE)
    backend.stores.clear()
    with cache:
        model(start()).sum().backward()
    assert len(backend.stores) == 2


def test_whole_parameters_made_in_the_step_stay() -> None:
    """As FSDP2 makes them: no module knows them when the cache is entered."""
    backend, model = Held(), Chain()
    with TensorCache(model, backend, keep=0, min_bytes=LEAST):
        gathered = nn.Parameter(torch.randn(WIDE, WIDE))
        y = start() @ gathered.t()
        assert len(backend.stores) == 1  # what is multiplied with it
        y.sum().backward()


def test_what_is_small_or_elsewhere_stays() -> None:
    backend = Held()
    with TensorCache(Chain(), backend, keep=0, min_bytes=1025):
        Chain()(start()).sum().backward()
    assert not backend.stores
    with TensorCache(nn.Linear(2, 2, device="meta"), backend, keep=0, min_bytes=0):
        Chain()(start()).sum().backward()
    assert not backend.stores
    sparse = torch.eye(4 * WIDE).to_sparse().requires_grad_()
    with TensorCache(Chain(), backend, keep=0, min_bytes=0):
        torch.sparse.mm(sparse, start().view(-1, 1)).sum().backward()
    assert len(backend.stores) <= 1


def test_a_storage_is_sent_once() -> None:
    backend, x = Held(), start()
    with cache_of(backend):
        y = x.tanh()
        mixed = torch.cat([y, y, y])
        query, key, value = mixed.chunk(3)
        (query * key + query.exp() * key * value * y.sin() * mixed.sum()).sum().backward()
    stored = [copy.storage_address for copy in backend.stores]
    assert len(stored) == len(set(stored))
    assert sum(copy.size_bytes == 3 * 1024 for copy in backend.stores) == 1


def test_a_buffer_that_is_written_again_is_sent_again() -> None:
    """The key is storage and version: the same storage holds other bytes in the next micro-batch."""
    backend, weight = Held(), torch.ones(4, WIDE, requires_grad=True)
    inputs = torch.zeros(4, WIDE)
    with cache_of(backend, window=0):
        found = []
        for n in range(3):
            inputs.fill_(n)
            y = (inputs * weight).sum()
            found.append(torch.autograd.grad(y, weight)[0])
    assert [float(f[0, 0]) for f in found] == [0.0, 1.0, 2.0] and len(backend.stores) == 3


def test_an_address_that_is_used_again_is_another_storage() -> None:
    backend, x = Held(), start()
    with cache_of(backend, window=0):
        for n in range(20):
            (gradient,) = torch.autograd.grad((x * n).tanh().sum(), x)
            plain = n * (1 - (x.detach() * n).tanh() ** 2)
            torch.testing.assert_close(gradient, plain)
    assert len(backend.stores) == 20


def test_a_small_view_does_not_send_its_storage() -> None:
    backend, table = Held(), torch.randn(64, 4 * WIDE, requires_grad=True)
    with cache_of(backend, window=0):
        large = table.tanh()
        parts = (large[5].exp() * large[6:9, ::2].mean()).sum()
        rows = (large[:4] * large[:4]).sum()
        del large
        ours = torch.autograd.grad(parts + rows, table)
    sizes = [copy.size_bytes for copy in backend.stores]
    assert max(sizes) == 64 * 4 * WIDE * 4  # tanh needs all of it
    assert sizes.count(max(sizes)) == 1
    large = table.tanh()
    plain = torch.autograd.grad((large[5].exp() * large[6:9, ::2].mean()).sum() + (large[:4] * large[:4]).sum(), table)
    expect_equal(list(ours), list(plain))

    backend.stores.clear()
    with cache_of(backend, window=0):
        data = torch.randn(64, WIDE * 4)
        weight = torch.randn(4, WIDE * 4, requires_grad=True)
        y = (weight * data[3:7]).sum() + (weight * weight).sum()
        assert [copy.size_bytes for copy in backend.stores] == [4 * WIDE * 4 * 4, 4 * WIDE * 4 * 4]
        storage = data.untyped_storage()
        expected = data[3:7] + 2 * weight.detach()
        del data
        y.backward()
    assert storage.nbytes() and torch.equal(weight.grad, expected)


class TestInPlace:
    """A tensor that is written to after it was saved is an error, as without a cache."""

    def plain(self, steps: object) -> None:
        with pytest.raises(RuntimeError, match=MODIFIED):
            steps(lambda: None)

    @pytest.mark.parametrize("window", [0, 1 << 20], ids=["stored", "forwarded"])
    @pytest.mark.parametrize("through", ["itself", "a view", "detached"])
    def test_of_what_was_sent(self, window: int, through: str) -> None:
        def steps(between: object) -> None:
            x = start()
            saved = x * 2
            y = saved.exp() if through == "itself" else saved.sin()
            target = {"itself": y, "a view": saved[1], "detached": saved.detach()}[through]
            target.add_(1)
            between()
            y.sum().backward()

        self.plain(steps)
        backend = Held(runs=True)
        with pytest.raises(RuntimeError, match=MODIFIED), cache_of(backend, window=1 << 20):
            steps(backend.finish if window == 0 else lambda: None)

    def test_of_what_is_stored_already(self) -> None:
        """The right bytes are elsewhere by then: no error, and PyTorch's gradient of the values that were saved."""
        x = start()
        with cache_of(Held(), window=0):
            y = x.exp()
            with torch.no_grad():
                y.add_(1)
            y.sum().backward()
        assert torch.equal(x.grad, x.detach().exp())

    def test_of_parameters_and_small_tensors(self) -> None:
        model = nn.Linear(WIDE, WIDE)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with TensorCache(model, Held(), keep=0, min_bytes=LEAST):
            loss = model(model(start())).sum()
            model(start().detach()).sum().backward()
            optimizer.step()
            with pytest.raises(RuntimeError, match=MODIFIED):
                loss.backward()
            small = torch.ones(3, requires_grad=True)
            y = small.exp()
            y.add_(1)
            with pytest.raises(RuntimeError, match=MODIFIED):
                y.sum().backward()

    def test_while_views_wait_for_others(self) -> None:
        weight = torch.ones(4, WIDE, requires_grad=True)
        with cache_of(Held(), window=0):
            data = torch.zeros(64, WIDE)
            y = (weight * data[:4]).sum()
            data.add_(1)
            other = start().tanh().sum()
            with pytest.raises(RuntimeError, match=MODIFIED):
                (y + other).backward()


class TestFailures:
    def test_a_store_that_fails_leaves_gradients_right_and_is_told_by_the_backward_pass(self) -> None:
        model, backend = blocks(), Held()
        plain = gradients(model)
        model.zero_grad()
        backend.error = LoadmasterError("the disk is full")
        cache = TensorCache(model, backend, keep=0, min_bytes=LEAST, window=0)
        with cache:
            loss = model(batch()).square().mean()
            stores = len(backend.stores)
            assert stores == 1  # no other is tried
            with pytest.raises(LoadmasterError, match="the disk is full"):
                loss.backward()
            expect_equal([p.grad for p in model.parameters()], plain)
        assert cache.stats().failed_bytes and not cache.stats().loaded_bytes
        backend.error = None  # room again
        expect_equal(gradients(model, cache), plain)
        assert cache.stats().loaded_bytes

    def test_or_by_leaving_the_cache(self) -> None:
        backend = Held()
        backend.error = LoadmasterError("the disk is full")
        with pytest.raises(LoadmasterError, match="the disk is full"), cache_of(backend, window=0):
            y = Chain()(start())
        y.sum().backward()

    def test_no_room_is_no_failure(self) -> None:
        model = blocks()
        plain = gradients(model)
        cache = TensorCache(model, HostMemory(20_000), keep=0, min_bytes=LEAST)
        for _ in range(3):
            expect_equal(gradients(model, cache), plain)
        stats = cache.stats()
        assert stats.kept_bytes and stats.offloaded_bytes and stats.host_bytes <= 20_000

    def test_sizes_that_never_come_again_take_no_more_than_the_capacity(self) -> None:
        place = HostMemory(1 << 16)
        longest = place.store(torch.zeros(100, dtype=torch.uint8))
        stored = []
        for size in range(1000, 9000, 500):
            for _ in range(4):
                stored.append(place.store(torch.zeros(size, dtype=torch.uint8)))
            for copy in filter(None, stored):
                place.free(copy)
            stored.clear()
        assert longest is not None and place.counters().peak_bytes == 1 << 16

    def test_host_memory_that_cannot_be_pinned(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(self: HostPool, size_bytes: int) -> torch.Tensor:
            raise InputError("host memory", size_bytes, "cannot be pinned", "Plan with less.")

        monkeypatch.setattr(HostPool, "take", refuse)
        x = start()
        with pytest.raises(InputError, match="HostMemory\\(capacity_bytes\\)"), cache_of("host"):
            Chain()(x).sum().backward()
        monkeypatch.undo()
        ours, x.grad = x.grad, None
        Chain()(x).sum().backward()
        assert torch.equal(ours, x.grad)

    def test_an_exception_in_the_model_leaves_nothing(self) -> None:
        backend, x = Held(), start()
        cache = cache_of(backend)
        with pytest.raises(KeyError), cache:
            y = Chain()(x)
            raise KeyError
        assert all(copy.cancelled for copy in backend.stores) and not cache.stats().offloaded_bytes
        y.sum().backward()  # they stayed
        assert torch.autograd.graph.disable_saved_tensors_hooks.__module__ == "torch.autograd.graph"
        with cache:
            Chain()(x).sum().backward()

    def test_a_graph_that_outlives_its_cache_says_so(self) -> None:
        x = start()
        with cache_of("host", window=0) as cache:
            y = Chain()(x)
            cache.close()
        with pytest.raises(LoadmasterError, match="was closed"):
            y.sum().backward()
        with cache:
            with pytest.raises(LoadmasterError, match="was closed"):
                y.sum().backward()
            Chain()(x).sum().backward()

    @pytest.mark.slow
    def test_a_cache_that_is_gone_closes_what_it_opened(self, monkeypatch: pytest.MonkeyPatch) -> None:
        closed = []
        monkeypatch.setattr(HostMemory, "close", lambda self: closed.append(self))
        with cache_of("host") as cache:
            Chain()(start()).sum().backward()
        del cache
        gc.collect()
        assert len(closed) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"to": "disk"}, "neither 'host' nor a folder"),
        ({"to": 7}, "no place for tensors"),
        ({"to": []}, "no place for tensors"),
        ({"keep": "some"}, "is not a size"),
        ({"keep": -1}, "is negative"),
        ({"min_bytes": "50%"}, "is a share"),
        ({"window": 1.5}, "no whole number of bytes"),
    ],
)
def test_arguments_that_cannot_be_used(options: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        TensorCache(Chain(), **options)
