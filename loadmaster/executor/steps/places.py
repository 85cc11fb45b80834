"""Place in the user's model of a graph node, or of an operator that runs: the path of the module, and its line of code.

Dynamo records both for every node that it traces, and AOTAutograd hands them to the node's backward. What has neither
(gradients that are summed, nodes that a pass has made) has the place of what it reads.

While a step runs, hooks on all modules know which one runs in the forward pass. In the backward pass, the autograd node
that runs has the number that it got when the forward operator was called.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

import loadmaster
from loadmaster.executor.steps.step import Step
from loadmaster.executor.steps.step_graph import StepGraph
from loadmaster.executor.torch_private.autograd import current_node, next_sequence_number, sequence_number_of

_STACKS = ("nn_module_stack", "fwd_nn_module_stack")
_RECORDED = (*_STACKS, "stack_trace")
_FRAME = re.compile(r'File "(.+?)", line (\d+)')
_ITEM = re.compile(r"""\[['"]?(\w+)['"]?\]""")
# Modules that PyTorch puts around those of the user's.
_WRAPPERS = {"_modules", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"}
_NOT_THE_MODELS = tuple(str(Path(package.__file__ or "").parent) + "/" for package in (torch, loadmaster))
_NOT_CALLERS = (*_NOT_THE_MODELS, "<", str(Path(contextlib.__file__).parent))


@dataclass(frozen=True)
class Place:
    """Module path (``layers.11.mlp``) and line (``model.py:214``), each None where it is not known."""

    module: str | None = None
    source: str | None = None


NOWHERE = Place()


def inherit(new: fx.Node, old: fx.Node) -> None:
    """Give a node the place of the one that it stands in for."""
    for key in _RECORDED:
        if key in old.meta:
            new.meta.setdefault(key, old.meta[key])


def places(step_graph: StepGraph) -> dict[fx.Node, Place]:
    """The place of every node of a step: its own, or that of the last node it reads which has one."""
    found: dict[fx.Node, Place] = {}
    for node in step_graph.nodes:
        module, source = _module(node), _source(node)
        read = sorted(node.all_input_nodes, key=step_graph.position.__getitem__, reverse=True) if module is None else []
        of_inputs = first_known(found[n] for n in read)
        # Without a module, the line is whichever the tracer saw last.
        found[node] = Place(module, source) if module is not None or of_inputs == NOWHERE else of_inputs
    return found


def first_known(known: Iterable[Place]) -> Place:
    """Return the first place that names a module or a line; else :data:`NOWHERE`."""
    return next((place for place in known if place != NOWHERE), NOWHERE)


def _module(node: fx.Node) -> str | None:
    """Module path of a node below the model; the model's class where no submodule runs it, ``loss`` for the loss."""
    stack = next((node.meta[key] for key in _STACKS if node.meta.get(key)), None)
    if stack is None:
        return None
    (root, _), *_ = entries = [(_path(path), kind) for path, kind in stack.values()]
    path, kind = entries[-1]
    below = path[len(root) :] if path[: len(root)] == root else path
    if not below:
        return "loss"
    if below == ("model",):
        return kind if isinstance(kind, str) else str(kind.__name__)
    return ".".join(below[1:] if below[0] == "model" else below)


def _path(written: str) -> tuple[str, ...]:
    """Split ``L['step'].model.layers[0]`` into step, model, layers, 0; the mark of a repeated call is left out."""
    parts = _ITEM.sub(r".\1", written.removeprefix("L")).split(".")
    return tuple(name for part in parts if (name := part.partition("@")[0]) and name not in _WRAPPERS)


def _source(node: fx.Node) -> str | None:
    """Innermost line of a node's stack that belongs to neither PyTorch nor Loadmaster, as ``file.py:line``."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    lines = [(file, line) for file, line in frames if not file.startswith(_NOT_THE_MODELS)]
    return f"{Path(lines[-1][0]).name}:{lines[-1][1]}" if lines else None


class CallPlaces:
    """Tracker of the place that calls the present operator, while :meth:`followed` is on; ``otherwise`` is the place of
    operators that no module calls."""

    def __init__(self, step: Step) -> None:
        self._paths: dict[nn.Module, str] = {step: "loss"}
        if isinstance(step.loss, nn.Module):
            self._paths |= dict.fromkeys(step.loss.modules(), "loss")
        for path, inner in step.model.named_modules():
            self._paths[inner] = path or type(step.model).__name__
        self.otherwise = NOWHERE
        self._running: list[str] = []
        self._forward: dict[int, Place] = {}

    @contextlib.contextmanager
    def followed(self) -> Iterator[None]:
        """Track which module runs, by hooks on all modules, within the block."""

        def begins(module: nn.Module, _inputs: object) -> None:
            if module in self._paths:
                self._running.append(self._paths[module])

        def ends(module: nn.Module, _inputs: object, _output: object) -> None:
            if module in self._paths and self._running:
                self._running.pop()

        handles = [register_module_forward_pre_hook(begins), register_module_forward_hook(ends, always_call=True)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._running.clear()
            self._forward.clear()

    def here(self) -> Place:
        """Return the place of the operator that is being called."""
        node: Any = current_node()
        if self._running:
            place = Place(self._running[-1], _line())
            if node is None and torch.is_grad_enabled():
                # The node of a forward operator is made before the operator is called.
                self._forward.setdefault(next_sequence_number() - 1, place)
            return place
        if node is not None:
            return self._forward.get(sequence_number_of(node), NOWHERE)
        return self.otherwise


def _line() -> str | None:
    """File and line of the innermost stack frame that is neither PyTorch's nor Loadmaster's."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_NOT_CALLERS):
            return f"{Path(code.co_filename).name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return None
