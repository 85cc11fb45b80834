"""Tracing of functions into FX graphs, and what AOTAutograd and Inductor agree on while they compile one."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeVar

from torch import fx

from loadmaster.executor.torch_private import needed

with needed():
    # Record of the compilation under way: parameters' places, strides of results, inputs that may be written over.
    # Compilers of a half of a step read and write it; AOTAutograd passes it in no other way.
    from torch._guards import CompileId as CompileId
    from torch._guards import TracingContext as TracingContext
    from torch._guards import tracing as tracing

    # Graph modules that write their code when they first run: most graphs here are only looked at.
    from torch.fx._lazy_graph_module import _LazyGraphModule as LazyGraphModule
    from torch.fx._lazy_graph_module import _use_lazy_graph_module as use_lazy_graph_modules

    # Tracer of a function into operators, with decompositions. Experimental, and the only one.
    from torch.fx.experimental.proxy_tensor import make_fx as make_fx

    # Code of a graph that takes its arguments as one list and empties it: arguments are freed at their last use.
    from torch.fx.graph import _BoxedCodeGen as BoxedCodeGen

__all__ = ["BoxedCodeGen", "LazyGraphModule", "use_lazy_graph_modules"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

codegen_of: Callable[[fx.Graph], Any] = attrgetter("_codegen")
"""What writes a graph's code, for ``Graph.set_codegen`` of a copy: ``Graph.graph_copy`` leaves it behind."""

rename: Callable[[fx.Node, str], None] = fx.Node._rename
"""Give a node another name; ``Node.name`` cannot be set on its own, since a graph keeps its names apart."""


def boxed(run: _Function) -> _Function:
    """Mark a compiled function as one that takes its arguments as one list, which it may empty. AOTAutograd asks for
    this attribute, and otherwise holds all arguments until the function returns."""
    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def note_as_dynamo_does(module: Any) -> None:
    """Give a graph module what Dynamo notes on those that it hands to a backend, and AOTAutograd asks for."""
    module.meta["dynamo_compile_id"] = CompileId(frame_id=0, frame_compile_id=0)
    module._param_name_to_source = {}
    for node in module.graph.find_nodes(op="placeholder"):
        node._dynamo_source = None
