"""Autograd's own records: the node and the backward pass that run, versions of tensors, hooks on saved tensors."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter, methodcaller
from typing import Any

import torch
from torch.autograd import graph

from loadmaster.executor.torch_private import needed

with needed():
    # Number of the backward pass that this thread runs, -1 outside one. Hooks on saved tensors must tell whether they
    # pack for a second derivative; no public function says so.
    current_backward_pass: Callable[[], int] = torch._C._current_graph_task_id

    # Node of the backward pass that runs, and the number that the next node of a forward pass gets: together they map
    # backward operators to the forward line that made them.
    current_node: Callable[[], Any] = torch._C._current_autograd_node
    next_sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr
    sequence_number_of: Callable[[Any], int] = methodcaller("_sequence_nr")

    # Stack of the default hooks on saved tensors. ``torch.autograd.graph.saved_tensors_hooks`` is a block only, and
    # does not tell whose hooks are on top.
    push_saved_tensors_hooks: Callable[..., None] = torch._C._autograd._push_saved_tensors_default_hooks
    pop_saved_tensors_hooks: Callable[[], None] = torch._C._autograd._pop_saved_tensors_default_hooks
    top_saved_tensors_hooks: Callable[[bool], Any] = torch._C._autograd._top_saved_tensors_default_hooks

    # Whether ``torch.func`` has wrapped a tensor, which then has no storage.
    is_functorch_wrapped: Callable[[torch.Tensor], bool] = torch._C._functorch.is_functorch_wrapped_tensor

    # Permission to call ``requires_grad_`` under functionalization.
    is_inplace_requires_grad_allowed: Callable[[], bool] = torch._C._functorch.get_inplace_requires_grad_allowed
    allow_inplace_requires_grad: Callable[[bool], None] = torch._C._functorch.set_inplace_requires_grad_allowed

version_of: Callable[[torch.Tensor], int] = attrgetter("_version")
"""Count of writes to a tensor's memory, by which autograd tells that a saved tensor was changed."""

base_of: Callable[[torch.Tensor], torch.Tensor | None] = attrgetter("_base")
"""Tensor that a view is of."""

storage_key: Callable[[torch.UntypedStorage], int] = attrgetter("_cdata")
"""Address of a storage's record, one for each storage that lives; ``data_ptr`` is 0 for fake and for freed memory."""


def after_backward(call: Callable[[], None]) -> None:
    """Call a function when the backward pass that runs is over, everything of it launched; public hooks run before."""
    engine: Any = torch.autograd.Variable._execution_engine
    engine.queue_callback(call)


DisableHooks = Callable[[str], Any]
disable_saved_tensors_hooks: DisableHooks = graph.disable_saved_tensors_hooks


def replace_disable_saved_tensors_hooks(by: DisableHooks) -> None:
    """Replace the function by which ``torch.func`` refuses to run under hooks on saved tensors, for all threads.
    Transforms call it by its module. They refuse under any hooks, also those that could step aside, and nothing can be
    registered that is asked before."""
    graph.disable_saved_tensors_hooks = by  # type: ignore[assignment]
