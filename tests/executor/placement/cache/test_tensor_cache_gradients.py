"""Gradients under a tensor cache are plain PyTorch's to the last bit, wherever tensors go, whatever the model does."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from loadmaster.executor import TensorCache
from loadmaster.executor.placement.cache.backends.host import HostMemory
from tests.executor.placement.cache.fake_backends import Held
from tests.executor.placement.cache.small_models import (
    LEAST,
    batch,
    blocks,
    expect_equal,
    gradients,
    small_files,
)
from tests.executor.worlds import join_alone

PLACES = ["host", pytest.param("a folder", marks=pytest.mark.slow), "two folders", "held back", "running"]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path):
    """A backend of each kind."""
    second = tmp_path / "second"
    second.mkdir()
    made = {
        "host": lambda: HostMemory(1 << 24),
        "a folder": lambda: small_files(tmp_path),
        "two folders": lambda: small_files(tmp_path, second, threads=2),
        "held back": Held,
        "running": lambda: Held(runs=True),
    }[request.param]()
    yield made
    if isinstance(made, Held):
        assert not made.died_early
    else:
        made.close()


def cache_of(model: nn.Module, place: object = "host", **options: object) -> TensorCache:
    return TensorCache(model, place, **{"keep": 0, "min_bytes": LEAST, **options})


@pytest.mark.parametrize("reentrant", [None, True, False], ids=["plain", "reentrant", "not reentrant"])
@pytest.mark.parametrize("window", [0, pytest.param(4096, marks=pytest.mark.slow), "auto"])
def test_steps_of_a_transformer(place: object, reentrant: bool | None, window: int | str) -> None:
    model = blocks(reentrant=reentrant)

    def loss() -> torch.Tensor:
        return model(batch().requires_grad_()).square().mean()  # reentrant checkpoints ask for it

    plain = gradients(model, None, loss)
    cache = cache_of(model, place, window=window)
    for _ in range(3):
        expect_equal(gradients(model, cache, loss), plain)
    stats = cache.stats()
    assert stats.offloaded_bytes + stats.forwarded_bytes > 0
    assert window != 0 or stats.offloaded_bytes == stats.loaded_bytes > 0


@pytest.mark.parametrize("keep", ["auto", 0, 3000, "1GiB"])
def test_whatever_is_kept(keep: int | str) -> None:
    model = blocks()
    plain = gradients(model)
    cache = cache_of(model, keep=keep)
    for _ in range(5):
        expect_equal(gradients(model, cache), plain)
    stats = cache.stats()
    if keep == "1GiB":
        first = stats.offloaded_bytes
        gradients(model, cache)
        assert cache.stats().offloaded_bytes == first and stats.kept_bytes == 4 * first  # nothing after the first
    if keep == 3000:
        assert 0 < stats.kept_bytes <= 4 * 3000


@pytest.mark.parametrize("hinted", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_interleaved_micro_batches(place: object, hinted: bool) -> None:
    model = blocks()
    plain = []
    for n in range(4):
        plain.append(torch.autograd.grad(model(batch(n)).square().mean(), list(model.parameters())))
    cache = cache_of(model, place, window=4096)
    alive: dict[int, torch.Tensor] = {}

    def forward(n: int) -> None:
        with cache.microbatch(n if hinted else None):
            alive[n] = model(batch(n)).square().mean()

    def backward(n: int) -> None:
        with cache.microbatch(n if hinted else None):
            found = torch.autograd.grad(alive.pop(n), list(model.parameters()))
        expect_equal(list(found), list(plain[n]))

    with cache:
        for _ in range(2):
            for order in ("0 1 -0 2 -1 3 -2 -3", "0 1 2 3 -0 -1 -2 -3", "0 1 2 3 -3 -2 -1 -0"):
                for word in order.split():
                    (backward if word.startswith("-") else forward)(int(word.removeprefix("-")))


def test_accumulated_gradients_and_a_backward_pass_outside() -> None:
    model, cache = blocks(), None
    plain, ours = [], []
    for found in (plain, ours):
        model.zero_grad()
        for n in range(3):
            if cache is None:
                loss = model(batch(n)).square().mean()
            else:
                with cache:
                    loss = model(batch(n)).square().mean()
            loss.backward()
        found += [p.grad.clone() for p in model.parameters()]
        cache = cache_of(model)
    expect_equal(ours, plain)


def test_a_graph_that_is_kept_and_a_gradient_of_a_gradient(place: object) -> None:
    weight = torch.randn(16, 16, requires_grad=True, generator=torch.Generator().manual_seed(1))
    model = nn.Module()
    model.weight = nn.Parameter(weight.detach())

    def found() -> list[torch.Tensor]:
        y = torch.tanh(torch.sin(batch() @ weight) @ weight).sum()
        twice = [torch.autograd.grad(y, weight, retain_graph=True)[0] for _ in range(2)]
        (first,) = torch.autograd.grad(y, weight, create_graph=True)
        return [*twice, *torch.autograd.grad(first.square().sum(), weight)]

    plain = found()
    with cache_of(model, place, window=0):
        expect_equal(found(), plain)


def test_autocast() -> None:
    model = blocks()

    def loss() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(batch()).float().square().mean()

    expect_equal(gradients(model, cache_of(model), loss), gradients(model, None, loss))


def test_hooks_of_others_inside_and_outside() -> None:
    model = blocks()
    plain = gradients(model)

    def inside() -> torch.Tensor:
        with save_on_cpu():
            x = model[0](batch())
        return model[2](model[1](x)).square().mean()

    expect_equal(gradients(model, cache_of(model), inside), plain)
    with save_on_cpu():
        expect_equal(gradients(model, cache_of(model)), plain)
    with cache_of(model):
        expect_equal(gradients(model, cache_of(model)), plain)


def test_functorch_transforms_run_without_the_cache() -> None:
    model, x = blocks(1)[0], batch()
    named = dict(model.named_parameters())

    def through_functorch() -> torch.Tensor:
        given = torch.func.grad(lambda p: torch.func.functional_call(model, p, (x,)).square().mean())(named)
        return given["out.weight"]

    plain = through_functorch()
    with cache_of(model) as cache:
        assert torch.equal(through_functorch(), plain)
        assert not cache.stats().offloaded_bytes + cache.stats().kept_bytes
        assert torch.equal(torch.vmap(torch.sin)(x), x.sin())
        expect_equal(gradients(model, None), gradients(model, cache))
    with pytest.raises(RuntimeError, match="saved tensor hooks"), cache_of(model), save_on_cpu():
        through_functorch()
    assert torch.autograd.graph.disable_saved_tensors_hooks.__module__ == "torch.autograd.graph"


@pytest.mark.slow
def test_compiled_models() -> None:
    model = blocks()
    compiled = torch.compile(model, backend="aot_eager")

    def loss() -> torch.Tensor:
        return compiled(batch()).square().mean()

    plain = gradients(model, None, loss)
    cache = cache_of(model, window=0)
    expect_equal(gradients(model, cache, loss), plain)
    assert cache.stats().offloaded_bytes > 0


@pytest.mark.parametrize("wrapper", ["DDP", "FSDP2"])
def test_a_wrapped_model_in_one_process(wrapper: str) -> None:
    model = blocks()
    plain = gradients(model)
    alone = Held()
    gradients(model, cache_of(model, alone, window=0))
    join_alone()
    try:
        if wrapper == "DDP":
            wrapped = nn.parallel.DistributedDataParallel(model)
        else:
            mesh = init_device_mesh("cpu", (1,))
            for block in model:
                fully_shard(block, mesh=mesh)
            wrapped = fully_shard(model, mesh=mesh)
        backend = Held()
        cache = cache_of(wrapped, backend, window=0)
        for _ in range(2):
            found = gradients(wrapped, cache)
            expect_equal([getattr(g, "full_tensor", lambda g=g: g)() for g in found], plain)
        assert cache.stats().loaded_bytes > 0
        sizes = [copy.size_bytes for copy in backend.stores]
        assert sizes == 2 * [copy.size_bytes for copy in alone.stores]  # so no gathered parameter either
    finally:
        torch.distributed.destroy_process_group()


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_random_programs(data: st.DataObject) -> None:
    """Operators that save inputs, outputs, views and pieces, in any order, in-place ones among them."""
    steps = data.draw(st.lists(st.sampled_from(sorted(_STEPS)), min_size=1, max_size=8))
    window = data.draw(st.sampled_from([0, 2000, 1 << 20]))
    torch.manual_seed(0)
    model = nn.Linear(12, 12)
    backend = Held(runs=data.draw(st.booleans()))
    cache = cache_of(model, backend, window=window, min_bytes=64)

    def loss() -> torch.Tensor:
        x = model(torch.linspace(-1, 1, 72).view(6, 12))
        for step in steps:
            x = _STEPS[step](x, model)
        return x.square().sum()

    plain = gradients(model, None, loss)
    for _ in range(2):
        expect_equal(gradients(model, cache, loss), plain)
    assert not backend.died_early


_STEPS = {
    "gelu": lambda x, m: torch.nn.functional.gelu(x),
    "tanh": lambda x, m: x.tanh(),
    "relu in place": lambda x, m: (x + 0.1).relu_(),
    "product of views": lambda x, m: x * x[:1] + x[:, :1] * x.flip(0),
    "linear": lambda x, m: m(x),
    "product": lambda x, m: (x.t() @ x)[:6] / 12,
    "a row": lambda x, m: x + (x[2] * x[3]).sin().tanh(),
    "expanded": lambda x, m: x * x[:, :1].expand(6, 12),
    "softmax": lambda x, m: x.softmax(-1) * x,
    "weight itself": lambda x, m: x * m.weight[:6] * m.bias,
    "chunks": lambda x, m: torch.cat([a * b for a, b in zip(x.chunk(3), x.chunk(3), strict=True)]),
    "complex": lambda x, m: torch.view_as_real(torch.view_as_complex(x.reshape(6, 6, 2)) ** 2).reshape(6, 12),
    "conjugate": lambda x, m: (torch.view_as_complex(x.reshape(6, 6, 2)).conj() * 2j).imag.repeat(1, 2) * x,
}


@pytest.mark.slow
def test_nothing_is_left_when_graphs_are_gone(place: object) -> None:
    model = blocks()
    cache = cache_of(model, place, window=0)
    with cache:
        for _ in range(2):
            model(batch())  # never needed
        model(batch()).sum().backward()
    gc.collect()
    assert cache.stats().offloaded_bytes > 0
    if isinstance(place, Held):
        assert len(place.freed) == len(place.stores)
