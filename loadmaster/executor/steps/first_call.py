"""First call of a model, which makes what all later calls find: tables of positions, hooks under a lock.

    if self.rel_indices is None: self.rel_indices = ...    # ConViT
    with _hook_installation_lock: ...                      # transformers: SegFormer, Wav2Vec2 for sequences

A step that is traced before that call differs from the steps that train, or cannot be traced. So where a trace failed,
the model is called once, as its user would call it: forward only, without gradients.
"""

from __future__ import annotations

import logging

import torch
from torch import nn

from loadmaster.executor.steps.batch import Batch
from loadmaster.executor.steps.step import Loss, Step
from loadmaster.executor.steps.unchanged import attributes, unchanged
from loadmaster.executor.steps.wrappers import is_among_ranks, own_module
from loadmaster.executor.torch_private.modules import buffers_of

_Tensors = dict[str, torch.Tensor | None]

logger = logging.getLogger(__name__)


def make_first_call(model: nn.Module, batch: Batch, loss: Loss | None) -> bool:
    """Call the model once; its values, gradients and random numbers stay as they are, except for what it makes.

    Returns:
        True if the call succeeded. Among ranks nothing is called: the other ranks would have to call it, too.
    """
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
