"""Place in the user's model that a graph node comes from: the path of the module that ran it, and its line of code.

Dynamo records both for every node that it traces, and AOTAutograd hands them to the node's backward. What has neither
(gradients that are summed, nodes that a pass has made) has the place of what it reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import fx

import loadmaster
from loadmaster.executor.steps.step_graph import StepGraph

_STACKS = ("nn_module_stack", "fwd_nn_module_stack")
_RECORDED = (*_STACKS, "stack_trace")
_FRAME = re.compile(r'File "(.+?)", line (\d+)')
_ITEM = re.compile(r"""\[['"]?(\w+)['"]?\]""")
# Modules that PyTorch puts around those of the user's.
_WRAPPERS = {"_modules", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"}
_NOT_THE_MODELS = tuple(str(Path(package.__file__ or "").parent) + "/" for package in (torch, loadmaster))


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
