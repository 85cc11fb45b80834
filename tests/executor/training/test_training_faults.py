"""Faults in the middle of a planned step: what is half-updated is said, and what is not goes on as plain PyTorch."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from loadmaster.errors import InputError
from loadmaster.executor.steps.pinned import HostPool
from loadmaster.executor.training import step as step_module
from loadmaster.executor.training.copies import CudaMover, HostMover
from loadmaster.executor.training.weights import InterruptedStepError
from loadmaster.models.training.ways import TRAINED, Way
from tests.executor.training.planned_nets import HOST_UPDATED, RESIDENT, STREAMED, Net
from tests.executor.training.side_by_side import EACH_WAY, STEPS, Both, trained_equally


@contextmanager
def failing_in_forward(model: Net, block: int, error: type[BaseException]) -> Iterator[None]:
    """Let a block fail before it runs."""

    def fail(*_: Any) -> None:
        raise error("in the forward pass")

    handle = model.blocks[block].up.register_forward_hook(fail)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def failing_in_backward(model: Net, block: int, error: type[BaseException]) -> Iterator[None]:
    """Let the gradient of a block's middle fail."""

    def fail(_: Tensor) -> None:
        raise error("in the backward pass")

    def hook(_: nn.Module, __: Any, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(fail)

    handle = model.blocks[block].up.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def within(seconds: float, call: Callable[[], Any]) -> Any:
    """Run a call that must not hang."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "hangs"
    return found[0]


# --- a parameter without a gradient


@EACH_WAY
@pytest.mark.parametrize(("accumulate", "max_norm"), [(1, None), (2, 0.3)])
def test_parameters_without_a_gradient_stay_as_they_are(
    ways: tuple[Way, ...], accumulate: int, max_norm: float | None
) -> None:
    both = Both(*ways, accumulate=accumulate, max_norm=max_norm)
    for step in range(STEPS):
        for model in (both.plain, both.model):
            # ``up`` of the first block is never used, a whole block in the second step alone, one in the third.
            model.blocks[0].up.forward = lambda x: torch.cat([x, x], dim=-1)
            for number, block in enumerate(model.blocks[1:], start=1):
                block.drop.p = 0.1
                block.down.forward = (
                    (lambda x: x[..., :16]) if step == number else nn.Linear.forward.__get__(block.down)
                )
        plain, planned = both.step()
        torch.testing.assert_close(planned, plain, rtol=1e-5, atol=1e-6)
    both.expect_equal()


# --- an exception in the forward pass


@EACH_WAY
@pytest.mark.parametrize(("error", "accumulate"), [(RuntimeError, 1), (KeyboardInterrupt, 2)])
def test_a_forward_pass_that_fails_can_be_made_again(
    ways: tuple[Way, ...], error: type[BaseException], accumulate: int
) -> None:
    both = Both(*ways, accumulate=accumulate, max_norm=0.3 if accumulate == 2 else None)
    both.step()
    for block in (2, 0):
        with failing_in_forward(both.model, block, error), pytest.raises(error):
            both.planned(both.batches[0])
        both.optimizer.zero_grad()
        trained_equally(both)


def test_an_update_that_fails_in_the_next_forward_pass_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Both(RESIDENT, max_norm=0.3)  # its updates run in the next forward pass
    both.step()

    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError("none left")

    with monkeypatch.context() as patch, pytest.raises(torch.OutOfMemoryError):
        patch.setattr(torch.optim.AdamW, "step", fail)
        both.planned(both.batches[0])
    with pytest.raises(InterruptedStepError, match=r"step 1 .*OutOfMemoryError: none left"):
        both.planned(both.batches[0])


@EACH_WAY
def test_memory_that_runs_out_in_a_load_can_be_asked_for_again(
    ways: tuple[Way, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    both = Both(*ways)
    both.step()
    empty, left = torch.empty, iter([False, True])

    def limited(*args: Any, **kwargs: Any) -> Tensor:
        if "device" in kwargs and next(left, False):
            raise torch.OutOfMemoryError("none left")
        return empty(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", limited)
        with suppress(torch.OutOfMemoryError):
            both.planned(both.batches[0])
    trained_equally(both)


# --- an exception in the backward pass


@EACH_WAY
@pytest.mark.parametrize(("error", "max_norm"), [(RuntimeError, None), (KeyboardInterrupt, 0.3)])
def test_a_backward_pass_that_fails_amid_updates(
    ways: tuple[Way, ...], error: type[BaseException], max_norm: float | None
) -> None:
    both = Both(*ways, max_norm=max_norm)
    both.step()
    saved = copy.deepcopy((both.model.state_dict(), both.optimizer.state_dict()))
    with failing_in_backward(both.model, 0, error), pytest.raises(error):
        both.planned(both.batches[0]).backward()
    interrupted = both.planned._actions._begun > 0
    if not interrupted:  # no update had begun: the step can be made again
        both.optimizer.zero_grad()
        trained_equally(both)
        return
    for call in (
        lambda: both.planned(both.batches[0]),
        both.model.state_dict,
        both.optimizer.state_dict,
        both.optimizer.step,
    ):
        with pytest.raises(InterruptedStepError, match=r"step 2 .* of \d groups.*Load the last checkpoint"):
            call()
    with torch.no_grad(), pytest.raises(InterruptedStepError, match="Load the last checkpoint"):
        both.model(both.batches[0])
    with pytest.warns(RuntimeWarning, match="half-updated: step 2"):
        both.planned.release()
    both.model.load_state_dict(saved[0])
    both.optimizer.load_state_dict(saved[1])
    both.optimizer.zero_grad()
    both.planned = both.plan(*ways)
    trained_equally(both)


def test_what_waits_for_a_norm_that_never_comes_does_not_hang() -> None:
    both = Both(HOST_UPDATED, max_norm=0.3)
    both.step()
    with failing_in_backward(both.model, 0, KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        both.planned(both.batches[0]).backward()
    host: ThreadPoolExecutor = both.planned._actions._host._executor
    within(20, lambda: host.submit(lambda: None).result())  # the end of the process waits for this thread
    with pytest.raises(InterruptedStepError):
        both.model.state_dict()

    def release() -> bool:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            both.planned.release()
        return True

    assert within(20, release)


def test_an_interrupt_while_the_host_updates_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Both(STREAMED)
    both.step()
    wait, interrupts = threading.Event.wait, iter([True])

    def interrupted(self: threading.Event, timeout: float | None = None) -> bool:
        if threading.current_thread() is threading.main_thread() and next(interrupts, False):
            raise KeyboardInterrupt
        return wait(self, timeout)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(threading.Event, "wait", interrupted)
        both.planned(both.batches[0])
    trained_equally(both)


def test_an_interrupt_at_the_end_of_a_step_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Both(RESIDENT, max_norm=0.3)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(both.planned._clipping, "end_step", interrupted)
        both.planned(both.batches[0]).backward()
    with pytest.raises(InterruptedStepError, match="KeyboardInterrupt"):
        both.planned(both.batches[0])


# --- an exception in the host's thread


@pytest.mark.parametrize("max_norm", [None, 0.3])
@pytest.mark.parametrize("call", ["step", "model", "optimizer", "release"])
def test_a_failed_update_on_the_host_reaches_the_next_call(
    monkeypatch: pytest.MonkeyPatch, call: str, max_norm: float | None
) -> None:
    both = Both(HOST_UPDATED, max_norm=max_norm)
    both.step()
    both.planned._actions.finish()

    def fail(*_: Any) -> None:
        raise MemoryError("none left")

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", fail)
        both.planned(both.batches[0]).backward()
        both.planned._actions.finish()
    if call == "release":
        with pytest.warns(RuntimeWarning, match="MemoryError: none left"):
            both.planned.release()
        return
    calls = {
        "step": lambda: both.planned(both.batches[0]),
        "model": both.model.state_dict,
        "optimizer": both.optimizer.state_dict,
    }
    for _ in range(2):
        with pytest.raises(InterruptedStepError, match="MemoryError: none left") as raised:
            calls[call]()
        assert isinstance(raised.value.__cause__, MemoryError)


# --- gradients that are not numbers


@EACH_WAY
@pytest.mark.parametrize("max_norm", [None, 0.3])
def test_gradients_of_nan_update_as_in_plain_pytorch(ways: tuple[Way, ...], max_norm: float | None) -> None:
    both = Both(*ways, max_norm=max_norm)
    both.step()
    for step, model, optimizer in (
        (both.plain, both.plain, both.plain_optimizer),
        (both.planned, both.model, both.optimizer),
    ):
        torch.manual_seed(1)
        (step(both.batches[0]) * torch.nan).backward()
        if max_norm is not None and step is both.plain:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        optimizer.zero_grad()
    for name, value in both.plain.state_dict().items():
        assert value.isnan().any()
        torch.testing.assert_close(both.model.state_dict()[name], value, equal_nan=True)


# --- host memory that cannot be had


@pytest.mark.parametrize("taken", [0, 1, 3, 6])
def test_a_model_is_as_before_where_host_memory_cannot_be_had(monkeypatch: pytest.MonkeyPatch, taken: int) -> None:
    both = Both(RESIDENT)
    both.step()
    both.planned.release()
    weights = {name: p.data for name, p in both.model.named_parameters()}
    values = {name: value.clone() for name, value in weights.items()}

    class Limited(HostMover):
        left = taken

        def host_buffer(self, size_bytes: int) -> Tensor:
            self.left -= 1
            if self.left < 0:
                raise InputError("host memory", size_bytes, "cannot be pinned", "Lock more.")
            return super().host_buffer(size_bytes)

    with monkeypatch.context() as patch, pytest.raises(InputError, match="pinned"):
        patch.setattr(step_module, "mover_of", lambda _: Limited())
        both.plan(*reversed(TRAINED))
    for name, p in both.model.named_parameters():
        assert torch.equal(p, values[name])
    both.planned = both.model  # type: ignore[assignment]
    trained_equally(both)
    both.planned = both.plan(*TRAINED)
    trained_equally(both)


@pytest.mark.skipif(torch.cuda.is_available(), reason="here memory can be pinned")
def test_memory_that_cannot_be_pinned_is_said_with_its_bytes() -> None:
    mover = CudaMover.__new__(CudaMover)
    mover._pool = HostPool()
    with pytest.raises(InputError, match=r"268435456 bytes.*larger budget_bytes.*ulimit -l"):
        mover.host_buffer(1000)


def test_a_model_runs_under_one_step_at_a_time() -> None:
    both = Both(STREAMED)
    with pytest.raises(InputError, match=r"step\.release\(\)"):
        both.plan(RESIDENT)
    both.planned.release()
    both.planned.release()
    with pytest.raises(InputError, match="released"):
        both.planned(both.batches[0])
    both.planned = both.plan(RESIDENT)
    trained_equally(both)


def test_an_optimizer_is_made_again_with_what_it_keeps() -> None:
    class Halved(torch.optim.SGD):
        def __init__(self, params: Any, lr: float, *, factor: float = 1.0) -> None:
            super().__init__(params, lr)
            self.factor = factor

        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.grad.mul_(self.factor)
            return super().step(closure)

    trained_equally(Both(*TRAINED, make=lambda model: Halved(model.parameters(), 0.1, factor=0.5)))


def test_an_optimizer_that_changes_its_settings_is_refused() -> None:
    class Counting(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            self.param_groups[0]["lr"] *= 0.5
            return super().step(closure)

    both = Both(RESIDENT, make=lambda model: Counting(model.parameters(), 0.1))
    with pytest.raises(InputError, match="changes its setting lr"):
        both.planned(both.batches[0]).backward()


def test_named_parameters_are_taken() -> None:
    trained_equally(Both(*TRAINED, make=lambda model: torch.optim.AdamW(model.named_parameters(), lr=1e-2)))
