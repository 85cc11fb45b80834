"""Trial runs of a step that leave the user's model exactly as it was, and the first call of a model.

The first call makes what all later calls find: tables of positions, hooks under a lock.

    if self.rel_indices is None: self.rel_indices = ...    # ConViT
    with _hook_installation_lock: ...                      # transformers: SegFormer, Wav2Vec2 for sequences

A step that is traced before that call differs from the steps that train, or cannot be traced. So where a trace failed,
the model is called once, as its user would call it: forward only, without gradients.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator

import torch
from torch import nn

from loadmaster.executor.steps.batch import AnyBatch, Batch
from loadmaster.executor.steps.resident import device_of
from loadmaster.executor.steps.step import Loss, Step
from loadmaster.executor.steps.step_graph import tensors
from loadmaster.executor.steps.wrappers import is_among_ranks, own_module
from loadmaster.executor.torch_private.modules import buffers_of, gradient_hooks_of

_Tensors = dict[str, torch.Tensor | None]

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def unchanged(step: Step, batch: AnyBatch, *, writes_parameters: bool = True) -> Iterator[list[torch.Tensor]]:
    """Run steps inside the block without changing the model; gives the gradients that are set aside meanwhile.

    After the block, parameters, buffers and inputs have their values and objects again, other tensors of modules are
    the same objects, gradients are back, and the random generators of the CPU and of the step's device have their old
    state. Copies are held in host memory, so that the device's peak is the step's own; of parameters only if the steps
    write them. Hooks on parameters and inputs do not run: they may step an optimizer.
    """
    held = {id(t): t for t in (*step.parameters(), *step.buffers(), *tensors(batch))}.values()
    written = [t for t in held if writes_parameters or not isinstance(t, nn.Parameter)]
    copies = [(t, t.detach().to("cpu", copy=True)) for t in written]
    registered = [(m, dict(buffers_of(m)), attributes(m)) for m in step.modules()]
    gradients = [(t, t.requires_grad, t.grad) for t in held if t.is_leaf]
    device = device_of(step, batch)
    with (
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        _unhooked([t for t, *_ in gradients]),
    ):
        try:
            for tensor, *_ in gradients:
                tensor.grad = None
            yield [gradient for *_, gradient in gradients if gradient is not None]
        finally:
            for tensor, requires_grad, gradient in gradients:
                tensor.requires_grad, tensor.grad = requires_grad, gradient
            for module, buffers, others in registered:
                buffers_of(module).update(buffers)
                vars(module).update(others)
            with torch.no_grad():
                for tensor, copy in copies:
                    if not _same(tensor.detach().cpu(), copy):
                        tensor.copy_(copy)


def attributes(module: nn.Module) -> dict[str, torch.Tensor | None]:
    """Attributes of a module that are tensors or None, without its parameters and buffers."""
    return {name: value for name, value in vars(module).items() if value is None or isinstance(value, torch.Tensor)}


@contextlib.contextmanager
def _unhooked(leaves: Iterable[torch.Tensor]) -> Iterator[None]:
    """Take hooks off gradients inside the block. They are emptied in place, for the handles that remove hooks."""
    hooks = [h for t in leaves for h in gradient_hooks_of(t)]
    kept = [dict(h) for h in hooks]
    for hook in hooks:
        hook.clear()
    try:
        yield
    finally:
        for hook, before in zip(hooks, kept, strict=True):
            hook.update(before)


def _same(now: torch.Tensor, before: torch.Tensor) -> bool:
    """Return whether values are equal, NaN to NaN: an unchanged tensor need not be writable (an expanded input)."""
    return torch.equal(now, before) or bool(((now == before) | ((now != now) & (before != before))).all())


def make_first_call(model: nn.Module, batch: Batch, loss: Loss | None) -> bool:
    """Call the model once, changing only what it makes then; return whether that succeeded. Among ranks nothing is
    called: the other ranks would have to call it, too."""
    if is_among_ranks():
        return False
    step = Step(own_module(model), loss)
    before = [(module, dict(buffers_of(module)), attributes(module)) for module in step.modules()]
    try:
        with unchanged(step, batch), torch.no_grad():
            step(*batch.args, **batch.kwargs)
            made = [
                (m, _of_another_shape(buffers_of(m), buffers), _of_another_shape(attributes(m), others))
                for m, buffers, others in before
            ]
    except Exception as error:  # noqa: BLE001 - the model's own
        logger.info("the model cannot be called: %s: %s", type(error).__name__, error)
        return False
    for module, buffers, others in made:
        buffers_of(module).update(buffers)
        vars(module).update(others)
    return True


def _of_another_shape(now: _Tensors, before: _Tensors) -> _Tensors:
    """Select tensors that replace None, or tensors of another shape: so no batch statistics and no state."""
    shapes = {name: None if tensor is None else tensor.shape for name, tensor in before.items()}
    return {name: tensor for name, tensor in now.items() if tensor is not None and tensor.shape != shapes.get(name)}
