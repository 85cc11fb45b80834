"""Comparison of a step that is to be handed out with one step of plain PyTorch: loss, gradients and buffers.

What is compared is the step itself where it draws no random numbers, else its two graphs, operator by operator, with
the same draws (:class:`~loadmaster.executor.memory.fit.same_draws.ByOperator`). Where plain PyTorch's step has no room
on the device, what it keeps for its backward pass is stored in host memory; where that does not help, the first rows of
the batch are compared.

A value may be off by a share that its precision explains (:data:`ALLOWED`). One that is off by more is looked at once
more: by how much plain PyTorch's own moves from step to step, and where each parameter is moved a little
(:data:`SHAKES`). Only what is off by far more than that is called another value. A gradient that is nothing but
rounding, as that of a bias before a batch norm, is as large as the sums are long; what is off by less than
:data:`ROUNDING` of other gradients does not count.
"""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from loadmaster.executor.memory.fit.phases import CHECKING, Phases
from loadmaster.executor.memory.fit.same_draws import ByOperator, SameDraws
from loadmaster.executor.memory.fit.trials import AnyStep
from loadmaster.executor.memory.fit.values import (
    LOSS,
    Comparison,
    Values,
    all_differences,
    differences,
    is_gradient,
    size_of_gradients,
    values_of,
)
from loadmaster.executor.steps.batch import Batch
from loadmaster.executor.steps.resident import device_of
from loadmaster.executor.steps.step import Loss, Step
from loadmaster.executor.steps.step_graph import tensors
from loadmaster.executor.steps.wrappers import own_module
from loadmaster.executor.torch_private.operators import pytree

logger = logging.getLogger(__name__)

ALLOWED = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 0.02, torch.bfloat16: 0.05}
"""Allowed share of a value's norm, by the least precise type that the step computes in."""
ALLOWED_TF32 = 0.01
"""Allowed share in float32 on a GPU, which may multiply in fewer digits."""
TIMES_NOISE = 4.0
SHAKES = {torch.float64: 1e-13, torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""The share by which parameters are moved: a rounding, and some of a type that others' sums are long in."""
SHAKE_TF32 = 1e-3
SHAKEN = 2
ROUNDING = 100.0
"""Multiple of the rounding of the type that sums are made in."""
LEAST_ROWS = 1


@dataclass(frozen=True)
class Reference:
    """Values of one step of plain PyTorch on ``batch``, all of it or the first rows; ``said`` is how it was run, in
    words, empty where nothing is to be said."""

    batch: Batch
    values: Values
    draws: SameDraws
    said: str
    around: Callable[[], contextlib.AbstractContextManager[object]]


class Verifier:
    """Compares steps with plain PyTorch's."""

    def __init__(self, model: nn.Module, batch: Batch, loss: Loss | None, phases: Phases) -> None:
        self._step = Step(own_module(model), loss)
        self._batch = self._step.batch(batch)
        self._phases = phases
        self._reference: Reference | None = None
        self._ways_left = self._ways()

    def compared(self, step: AnyStep) -> Comparison:
        """Compare a step that was run before with one of plain PyTorch."""
        with self._phases.during(CHECKING):
            while True:
                try:
                    return self._compared(step)
                except Exception as error:  # noqa: BLE001 - of the model's own code, or of what it cannot be run under
                    reason = str(error).strip().partition("\n")[0].rstrip(".")
                    if not _is_lack_of_memory(error):
                        return _left_out(f"{type(error).__name__}: {reason}")
                    self._reference = None  # the next one takes less
                finally:
                    self._free()

    def forget(self) -> None:
        """Drop the step of plain PyTorch that steps are compared with: parameters move on."""
        self._reference, self._ways_left = None, self._ways()

    def _compared(self, step: AnyStep) -> Comparison:
        if self._reference is None:
            self._reference = self._plain()
        reference = self._reference
        if reference is None:
            return _left_out("the device has no room for a step of plain PyTorch, not even of one row")
        apart = bool(reference.draws.drawn or reference.batch is not self._batch)
        run = ByOperator(step) if apart else step
        drew_outside = False

        def watched(*args: object, **kwargs: object) -> Tensor:
            nonlocal drew_outside
            before = self._generators()
            loss: Tensor = run(*args, **kwargs)
            drew_outside = isinstance(run, ByOperator) and self._generators() != before
            return loss

        found = values_of(watched, self._step, reference.batch)
        if isinstance(run, ByOperator):
            others = run.seeded - reference.draws.seeded
            if others:
                return _left_out(f"nobody else has the random numbers of the step's {', '.join(sorted(others))}")
        if drew_outside:
            return _left_out("the model draws random numbers between its graphs")
        allowed = self._allowed(reference.draws.coarsest)
        differ = differences(found, reference.values, allowed)
        if differ:
            noise = self._noise(reference, allowed)
            if noise is None:
                return _left_out("plain PyTorch's own step gives other values each time")
            differ = [d for d in differ if not d.share <= TIMES_NOISE * noise.get(d.what, 0.0)]
            summed = torch.float64 if _kind(reference.draws.coarsest) is torch.float64 else torch.float32
            tiny = ROUNDING * torch.finfo(summed).eps * size_of_gradients(reference.values)
            differ = [d for d in differ if not (is_gradient(d.what) and d.each <= tiny)]
        if differ:
            return Comparison(f"{differ[0]}.", differ[0])
        shares = [d.share for d in all_differences(found, reference.values)]
        return Comparison(self._passed(reference, shares, allowed, by_operator=apart))

    def _passed(self, reference: Reference, shares: Sequence[float], allowed: float, *, by_operator: bool) -> str:
        gradients = sum(map(is_gradient, reference.values))
        buffers = len(reference.values) - gradients - 1
        how = [reference.said] if reference.said else []
        if by_operator:
            how.append("operator by operator")
        if reference.draws.drawn:
            how.append(f"with the same draws of {', '.join(sorted(reference.draws.drawn))}")
        counted = [_count(gradients, "gradient"), *([_count(buffers, "buffer")] if buffers else [])]
        worst = max((share for share in shares if share <= allowed), default=0.0)
        restless = sum(not share <= allowed for share in shares)
        but = f", but for {restless} that rounding alone moves as far" if restless else ""
        return (
            f"Compared with one step of plain PyTorch{', ' if how else ''}{', '.join(how)}: the loss and "
            f"{' and '.join(counted)} are off by {worst:.1g} of their norm at most ({allowed:g} is allowed){but}."
        )

    def _plain(self) -> Reference | None:
        """One step of plain PyTorch, on as much of the batch as there is room for."""
        for batch, around, said in self._ways_left:
            try:
                with SameDraws() as draws, around():
                    values = values_of(self._step, self._step, batch)
                return Reference(batch, values, draws, said, around)
            except Exception as error:
                if not (_is_lack_of_memory(error) or around is _in_host_memory):
                    raise
            self._free()
        return None

    def _ways(self) -> Iterator[tuple[Batch, Callable[[], contextlib.AbstractContextManager[object]], str]]:
        """Batches, contexts to run the step in, and words for both; each takes less of the device than the last."""
        yield self._batch, contextlib.nullcontext, ""
        if device_of(self._step, self._batch).type == "cuda":
            yield self._batch, _in_host_memory, "which kept its results in host memory"
        every = _rows(self._batch)
        rows = every // 2
        while rows >= LEAST_ROWS:
            yield first_rows(self._batch, rows, every), contextlib.nullcontext, f"on the first {rows} of {every} rows"
            rows //= 2

    def _noise(self, reference: Reference, allowed: float) -> dict[str, float] | None:
        """Share that each value of plain PyTorch moves between two steps, and with rounding. None: the loss moves."""

        def again(before: Callable[[], None] = lambda: None) -> dict[str, float]:
            with SameDraws(), reference.around():
                moved = values_of(self._step, self._step, reference.batch, before)
            return {found.what: found.share for found in all_differences(moved, reference.values)}

        found = [again()]
        if not found[0].get(LOSS, 0.0) <= allowed:
            return None
        share = SHAKE_TF32 if self._may_use_tf32(reference.draws.coarsest) else SHAKES[_kind(reference.draws.coarsest)]
        for seed in range(SHAKEN):
            found.append(again(lambda seed=seed: self._shake(share, seed)))  # type: ignore[misc]
        return {what: max(moved.get(what, 0.0) for moved in found) for what in reference.values}

    @torch.no_grad()
    def _shake(self, share: float, seed: int) -> None:
        """Move each parameter up or down."""
        for parameter in self._step.parameters():
            if parameter.is_floating_point() or parameter.is_complex():
                generator = torch.Generator(parameter.device).manual_seed(seed)
                up = torch.randint(0, 2, parameter.shape, generator=generator, device=parameter.device)
                parameter.mul_((1.0 + share * (2.0 * up - 1.0)).to(parameter.dtype))

    def _allowed(self, coarsest: torch.dtype | None) -> float:
        return ALLOWED_TF32 if self._may_use_tf32(coarsest) else ALLOWED[_kind(coarsest)]

    def _may_use_tf32(self, coarsest: torch.dtype | None) -> bool:
        return _kind(coarsest) is torch.float32 and device_of(self._step, self._batch).type == "cuda"

    def _generators(self) -> list[bytes]:
        """States of the random generators of the processor and of the device."""
        device = device_of(self._step, self._batch)
        states = [torch.get_rng_state()]
        if device.type == "cuda":
            states.append(torch.cuda.get_rng_state(device))
        return [state.numpy().tobytes() for state in states]

    def _free(self) -> None:
        gc.collect()
        if device_of(self._step, self._batch).type == "cuda":
            torch.cuda.empty_cache()


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _kind(coarsest: torch.dtype | None) -> torch.dtype:
    return coarsest or torch.float32


def _left_out(why: str) -> Comparison:
    logger.info("not compared with plain PyTorch: %s", why)
    return Comparison(f"It was not compared with plain PyTorch: {why}.")


def _in_host_memory() -> contextlib.AbstractContextManager[object]:
    return torch.autograd.graph.save_on_cpu()


def _is_lack_of_memory(error: Exception) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "not enough memory" in str(error)


def _rows(batch: Batch) -> int:
    return next((t.shape[0] for t in tensors([batch.args, batch.kwargs]) if t.dim()), 0)


def first_rows(batch: Batch, rows: int, of: int) -> Batch:
    """The first rows of every tensor of a batch that has as many as given; the others as they are."""

    def part(value: object) -> object:
        if not isinstance(value, Tensor) or not value.dim() or value.shape[0] != of:
            return value
        return value.detach()[:rows].clone().requires_grad_(value.requires_grad)

    args, kwargs = pytree.tree_map(part, (batch.args, dict(batch.kwargs)))
    return replace(batch, args=args, kwargs=kwargs)
