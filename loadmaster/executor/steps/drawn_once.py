"""Guard that keeps PyTorch's own partition of a joint graph from drawing random numbers a second time.

With ``activation_memory_budget`` below 1 the partition may compute again in the backward pass what the forward pass has
drawn, seeds most of all: the gradient is then that of another dropout mask (PyTorch issue 190758, in 2.11 to 2.13). At
0 it keeps nothing but inputs, whatever anybody marks, so that the least budget here is a little more. PyTorch also
merges two equal draws into one, except for the operators of a list.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from loadmaster.executor.steps import step_graph
from loadmaster.executor.steps.one_graph.replaced_attributes import Change, patched
from loadmaster.executor.steps.step_graph import draws, is_random
from loadmaster.executor.torch_private.functorch import functorch_config
from loadmaster.executor.torch_private.inductor import (
    CustomGraphPass,
    compile_fx,
    compile_utils,
    get_hash_for_files,
    inductor_config,
    partitioners,
)
from loadmaster.executor.torch_private.operators import OpOverloadPacket

LEAST_BUDGET = 1e-6
"""Smallest ``activation_memory_budget``: a share of what a step keeps, less than any single tensor of it."""
_RECOMPUTE = "recompute"  # metadata key of the partition
_BY_USER = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)


class _DrawingOperators:
    """Stand-in for PyTorch's list of operators whose nodes are never merged: all operators that draw random numbers."""

    def __contains__(self, target: object) -> bool:
        if not isinstance(target, OpOverloadPacket):
            return False
        return any(draws(getattr(target, name)) for name in target.overloads())  # type: ignore[no-untyped-call]


EACH_DRAW_ITS_OWN: Change = (compile_utils, "rand_ops", _DrawingOperators())


class KeptDraws(CustomGraphPass):
    """Graph pass that has the partition keep what is drawn. It runs after the passes that the user has set."""

    def __init__(self, before: Sequence[Callable[[fx.Graph], None]]) -> None:
        self._before = tuple(before)

    def __call__(self, graph: fx.Graph) -> None:
        """Run the user's passes, then mark what is drawn."""
        for run in self._before:
            run(graph)
        keep_draws(graph)

    def uuid(self) -> Any:
        """Key of the pass in Inductor's caches; None, which turns caching off, where a user's pass has no key."""
        each = [run.uuid() if isinstance(run, CustomGraphPass) else None for run in self._before]
        return None if not all(each) else (get_hash_for_files((__file__, step_graph.__file__)), *each)


def keep_draws(graph: fx.Graph) -> None:
    """Mark the random draws of a joint graph, so that no partition of it draws them again; those of the user's
    checkpoints are left to them, since PyTorch puts the generator back for those."""
    for node in list(graph.nodes):
        if not is_random(node) or node.meta.get(_RECOMPUTE) in _BY_USER:
            continue
        node.meta[_RECOMPUTE] = CheckpointPolicy.MUST_SAVE
        for result in _results(node):
            _keep_result(graph, result)


def _results(node: fx.Node) -> list[fx.Node]:
    """Tensors that ``getitem`` takes out of a node of several results; empty for a node of one result."""
    taken = [user for user in node.users if user.target is operator.getitem]
    return [result for result in taken if isinstance(result.meta.get("val"), torch.Tensor)]


def _keep_result(graph: fx.Graph, result: fx.Node) -> None:
    """Mark one of several results through a ``detach`` of its own: PyTorch heeds no mark of a ``getitem``."""
    with graph.inserting_after(result):
        kept = graph.call_function(torch.ops.aten.detach.default, (result,))
    kept.meta.update(result.meta)
    kept.meta[_RECOMPUTE] = CheckpointPolicy.MUST_SAVE
    result.replace_all_uses_with(kept, delete_user_cb=lambda user: user is not kept)


_choose_saved_values = partitioners.choose_saved_values_set


def _saved_tensors(joint_graph: fx.Graph, node_info: Any, memory_budget: float = 1) -> list[fx.Node]:
    """PyTorch's choice of the tensors saved for the backward pass, with a node's results in place of the node itself.
    PyTorch chooses nodes of several results, which cannot be saved, where nothing else is costly to compute."""
    found: dict[fx.Node, None] = {}
    for node in _choose_saved_values(joint_graph, node_info, memory_budget):
        results = [kept for result in _results(node) for kept in result.users] if is_random(node) else []
        read = [r for r in results if any(user not in node_info.required_fw_nodes for user in r.users)]
        found |= dict.fromkeys(read if results else [node])
    return list(found)


TENSORS_SAVED: Change = (partitioners, "choose_saved_values_set", _saved_tensors)


def warn_of_users_budget() -> None:
    """Warn, if the user has set a budget below 1, of wrong gradients in steps compiled without this module."""
    budget = functorch_config.activation_memory_budget
    if budget < 1:
        warnings.warn(
            f"torch._functorch.config.activation_memory_budget is {budget:g}: what you compile under it yourself may "
            "draw dropout masks a second time in its backward pass, and has wrong gradients then (PyTorch issue "
            "190758). Steps of fit draw each once.",
            stacklevel=2,
        )


def compile_drawing_once(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    inner_compile: Callable[..., Any],
    patches: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile with Inductor's ``compile_fx`` under PyTorch's own partition, which draws random numbers once."""
    set_before = inductor_config.joint_custom_post_pass
    before = set_before if isinstance(set_before, (list, tuple)) else [set_before] if set_before else []
    settings = {**(patches or {}), "joint_custom_post_pass": KeptDraws(before)}
    budget = functorch_config.activation_memory_budget or LEAST_BUDGET
    with functorch_config.patch(activation_memory_budget=budget), patched(EACH_DRAW_ITS_OWN, TENSORS_SAVED):
        return cast(
            Callable[..., Any], compile_fx(module, inputs, inner_compile=inner_compile, config_patches=settings)
        )
