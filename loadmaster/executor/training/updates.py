"""Updates of one group of parameters by an optimizer of the user's own class, and those that run on the host.

Each group has an optimizer for itself, so that it is updated when its gradient is there, wherever its weights are, with
the user's current settings. This asks of the optimizer that it updates each parameter by its own gradient and state
alone, as PyTorch's do.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from loadmaster.errors import InputError
from loadmaster.executor.steps.host_link import cores
from loadmaster.executor.training.clipping import Clip
from loadmaster.executor.training.copies import Move, Mover, Packing
from loadmaster.executor.training.layers import ModelGroup
from loadmaster.executor.training.weights import HostWeights

# Smaller tensors of a state, such as Adam's count of steps, stay where the update runs.
SMALL_STATE_ELEMENTS = 16
First = TypeVar("First")
Result = TypeVar("Result")
_ONE_BY_ONE = "Use one that updates each parameter by its own gradient and state alone, and is made of groups of them."


def settings_of(group: dict[str, Any]) -> dict[str, Any]:
    """Copy a parameter group's settings as they are now: schedulers write into those that are tensors."""
    return {
        name: value.clone() if isinstance(value, Tensor) else value
        for name, value in group.items()
        if name not in ("params", "param_names")
    }


class GroupOptimizer:
    """Optimizer of one group's master weights.

    Args:
        optimizer, number: the user's, and which of its parameter groups this is a part of.
        masters: weights that it updates, in place.
        device: where it updates them.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, number: int, masters: Sequence[nn.Parameter], device: torch.device
    ) -> None:
        self._users, self._number, self.masters, self._device = optimizer, number, tuple(masters), device
        kinds = {(m.dtype, m.dim()): m for m in masters}.values()
        self._is_fused = all(_has_fused(optimizer, number, m, device) for m in kinds)
        self._own: Any = _made_like(optimizer, {"params": list(masters), **self.settings()})

    def settings(self) -> dict[str, Any]:
        """The user's current settings: learning rate, weight decay, and so on; fused kernels where there are some,
        unless they say no."""
        given = settings_of(self._users.param_groups[self._number])
        if self._is_fused and _leaves_kernels(given):
            given["fused"] = True
        if self._device.type == "cpu" and given.get("capturable"):
            given["capturable"] = False  # for CUDA graphs, which updates on the host are no part of
        return given

    def step(self, settings: dict[str, Any]) -> None:
        """Update the weights by their gradients, under settings read when the gradients were complete."""
        group = self._own.param_groups[0]
        group.update(settings)
        self._own.step()
        for name, value in settings.items():
            if group[name] is not value:
                problem = f"changes its setting {name} in a step, which all parameters of a group share"
                raise InputError("optimizer", type(self._own).__name__, problem, _ONE_BY_ONE)
        for master in self.masters:
            master.grad = None

    @property
    def states(self) -> list[dict[str, Any]]:
        """State of each of the master weights, as the optimizer keeps it; empty before the first step."""
        return [self._own.state.get(master, {}) for master in self.masters]

    def first_states(self) -> list[dict[str, Any]]:
        """Make the state of each of the master weights that a first step without gradients leaves, on the host."""
        return _states_on("cpu", self._users, self._number, self.masters)

    def take_states(self, states: Sequence[dict[str, Any]], device: torch.device) -> None:
        """Take over the state of each of the master weights, on the device of the update."""
        steps_there = bool(self.settings().get("fused") or self.settings().get("capturable"))
        for master, state in zip(self.masters, states, strict=True):
            if state:
                self._own.state[master] = {
                    name: value.to(device) if isinstance(value, Tensor) and (name != "step" or steps_there) else value
                    for name, value in state.items()
                }


def _leaves_kernels(settings: dict[str, Any]) -> bool:
    """Return whether settings leave it open which kernels update, as PyTorch's defaults do."""
    is_open = settings.get("fused", False) is None and settings.get("foreach") is None
    return is_open and not settings.get("differentiable")


def _has_fused(optimizer: torch.optim.Optimizer, number: int, like: Tensor, device: torch.device) -> bool:
    """Return whether an optimizer has fused kernels for such parameters: one of them, small, is updated."""
    settings = settings_of(optimizer.param_groups[number])
    if not _leaves_kernels(settings):
        return False
    small = nn.Parameter(torch.zeros((1,) * like.dim(), dtype=like.dtype, device=device))
    small.grad = torch.zeros_like(small)
    try:
        _made_like(optimizer, {"params": [small], **settings, "fused": True}).step()
    except (RuntimeError, InputError):
        return False
    return True


def _made_like(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> torch.optim.Optimizer:
    """Make an optimizer of the same class for another group of parameters, with what the user's own keeps beside its
    settings."""
    kind, given = type(optimizer), vars(optimizer)
    known = optimizer.defaults | given
    needed = {
        name: known[name]
        for name, parameter in inspect.signature(kind).parameters.items()
        if parameter.default is inspect.Parameter.empty and name in known
    }
    try:
        made = kind([group], **needed)
    except Exception as error:  # whatever its constructor wants
        problem = f"cannot be made for a part of its parameters: {error}"
        raise InputError("optimizer", kind.__name__, problem, _ONE_BY_ONE) from error
    vars(made).update({name: value for name, value in given.items() if isinstance(value, bool | int | float | str)})
    return made


def moving(states: Sequence[dict[str, Any]]) -> list[tuple[int, str]]:
    """List the tensors of a state that are worth a move: (number of the parameter, name)."""
    return [
        (n, name)
        for n, state in enumerate(states)
        for name, value in sorted(state.items())
        if isinstance(value, Tensor) and value.numel() > SMALL_STATE_ELEMENTS
    ]


def states_like(optimizer: torch.optim.Optimizer, number: int, masters: Sequence[nn.Parameter]) -> list[dict[str, Any]]:
    """The state that the optimizer will keep for master weights: a step of it is run on meta tensors, or where it asks
    for values, on zeros in host memory."""
    try:
        return _states_on("meta", optimizer, number, masters)
    except RuntimeError:
        return _states_on("cpu", optimizer, number, masters)


def _states_on(
    device: str, optimizer: torch.optim.Optimizer, number: int, masters: Sequence[nn.Parameter]
) -> list[dict[str, Any]]:
    stand_ins = [nn.Parameter(torch.zeros_like(p, device=device)) for p in masters]
    own = GroupOptimizer(optimizer, number, stand_ins, torch.device(device))
    if any(own.states):  # some make it before any step
        return own.states
    for stand_in in stand_ins:
        stand_in.grad = torch.zeros_like(stand_in)
    settings = own.settings()
    own.step(settings | {name: False for name in ("foreach", "fused", "capturable") if name in settings})
    return own.states


def host_threads() -> int:
    """Number of threads of the host's updates: all cores but the one that launches."""
    return max(1, cores() - 1)


class HostThread:
    """Thread in which all updates on the host run, one after the other, with memory for gradients in the format of the
    master weights, which is used again: pages that are new in every update would take longer than the update."""

    def __init__(self, threads: int) -> None:
        self._executor = ThreadPoolExecutor(1, "host updates", torch.set_num_threads, (threads,))
        self._memory = torch.empty(0, dtype=torch.uint8)

    def submit(self, call: Callable[[], Result]) -> Future[Result]:
        """Run a function in the thread."""
        return self._executor.submit(call)

    def submit_after(self, first: Future[First], call: Callable[[First], Result]) -> Future[Result]:
        """Run a function in the thread once its argument is known. The thread does not wait for that: a step that is
        interrupted would leave it, and the end of the process, waiting for ever."""
        coming: Future[Result] = Future()

        def end(run: Future[Result]) -> None:
            error = run.exception()
            if error is None:
                coming.set_result(run.result())
            else:
                coming.set_exception(error)

        def begin(known: Future[First]) -> None:
            try:
                argument = known.result()
                self.submit(lambda: call(argument)).add_done_callback(end)
            except Exception as error:  # noqa: BLE001 (whoever waits for the result gets it)
                coming.set_exception(error)

        first.add_done_callback(begin)
        return coming

    def shut_down(self) -> None:
        """End the thread after what it has to do."""
        self._executor.shutdown()

    def update(
        self,
        optimizer: GroupOptimizer,
        gradients: Sequence[Tensor | None],
        settings: dict[str, Any],
        clip: Clip | None,
    ) -> None:
        """Update master weights by gradients in another format. In the thread."""
        packing = Packing(optimizer.masters, [m.dtype for m in optimizer.masters])
        if self._memory.numel() < packing.size_bytes:
            self._memory = torch.empty(packing.size_bytes, dtype=torch.uint8)
        for master, gradient, memory in zip(optimizer.masters, gradients, packing.views(self._memory), strict=True):
            if gradient is None:
                master.grad = None
                continue
            master.grad = gradient if gradient.dtype == master.dtype else memory.copy_(gradient)
            if clip is not None:
                clip(master.grad)
        optimizer.step(settings)


class Filed(Protocol):
    """Optimizer state of a group in files."""

    def here(self) -> AbstractContextManager[None]:
        """Bring it to host memory for an update in a context."""

    @property
    def values(self) -> Sequence[dict[str, Any]]:
        """State of each parameter, copied from files."""


class HostUpdate:
    """Update on the host, in the thread for that, once the gradient has arrived there; ``filed`` puts the optimizer's
    state into files between updates."""

    def __init__(
        self,
        weights: HostWeights,
        of: ModelGroup,
        optimizer: torch.optim.Optimizer,
        mover: Mover,
        host: HostThread,
        filed: Callable[[GroupOptimizer], Filed] | None = None,
    ) -> None:
        assert of.updated_by is not None
        self._of, self._weights, self._mover, self._host = of, weights, mover, host
        self.optimizer = GroupOptimizer(optimizer, of.updated_by, weights.masters, torch.device("cpu"))
        self.optimizer.take_states([optimizer.state.get(p, {}) for p in of.parameters], torch.device("cpu"))
        self._filed = None if filed is None else filed(self.optimizer)
        self._arriving = weights.copy_packing.views(mover.host_buffer(weights.copy_packing.size_bytes))
        self._sent: list[Tensor] = []
        self._arrived: Move | None = None

    def send(self, clip: Future[Clip | None]) -> None:
        """Queue the way of the gradients to the host, and the update there."""
        arriving, pairs, mark = [], [], self._mover.mark()
        self._weights.finish_update()  # what it read is overwritten now
        for p, view in zip(self._of.parameters, self._arriving, strict=True):
            if p.grad is not None:
                pairs.append((view, p.grad))
            arriving.append(None if p.grad is None else view)
            p.grad = None
        if pairs:
            self._sent = [gradient for _, gradient in pairs]
            arrived = self._arrived = self._mover.store(pairs, [mark])
            settings = self.optimizer.settings()
            self._weights.updated = self._host.submit_after(
                clip, lambda known: self._update(arriving, arrived, settings, known)
            )
            self._weights.is_current = False

    def free(self) -> None:
        """Free the device memory of gradients that have arrived on the host."""
        if self._arrived is not None:
            self._arrived.wait()
        self._sent, self._arrived = [], None

    @torch.no_grad()
    def _update(
        self, gradients: list[Tensor | None], arrived: Move, settings: dict[str, Any], clip: Clip | None
    ) -> None:
        arrived.finish()
        with nullcontext() if self._filed is None else self._filed.here():
            self._host.update(self.optimizer, gradients, settings, clip)
        for copied, master in zip(self._weights.copy_views, self._weights.views, strict=True):
            copied.copy_(master)

    def finish(self) -> None:
        """Wait until the update is over, however it ended."""
        if self._weights.updated is not None:
            self._weights.updated.exception()

    @property
    def state_values(self) -> list[dict[str, Any]]:
        """The optimizer's state of each parameter."""
        if self._filed is not None:
            return list(self._filed.values)
        return [dict(state) for state in self.optimizer.states]
