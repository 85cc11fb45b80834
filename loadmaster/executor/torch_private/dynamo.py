"""Dynamo: its settings, errors, and the variables by which it follows a model's Python. Importing this loads Dynamo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from loadmaster.executor.torch_private import needed

with needed():
    # Settings without a public option, such as calls that Dynamo passes over.
    from torch._dynamo import config as dynamo_config

    # Errors of a step that is not one graph. ``torch.compiler`` exports none.
    from torch._dynamo import exc as dynamo_errors
    from torch._dynamo.variables import base as _base
    from torch._dynamo.variables import builtin as _builtin

    # Stand-ins for the model's values while it is traced. What Dynamo refuses of them has no public hook.
    from torch._dynamo.variables.base import VariableTracker as VariableTracker
    from torch._dynamo.variables.tensor import TensorVariable as TensorVariable
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable as TorchInGraphFunctionVariable

    # Pickled graphs with fake tensors, for another process to compile: ``torch.export`` takes no joint graphs.
    from torch.fx._graph_pickler import GraphPickler as GraphPickler
    from torch.fx._graph_pickler import Options as PickleOptions

    # Symbols for sizes, which a fake tensor of unknown sizes needs.
    from torch.fx.experimental.symbolic_shapes import ShapeEnv as ShapeEnv

    # Dynamo's table of tensors' methods, from 2.14 on. Before, they are attributes of ``TensorVariable``.
    _METHODS: dict[str, Any] | None = getattr(TensorVariable, "tp_methods", None)
    _Method: Any = getattr(_base, "Method", None)

__all__ = ["PickleOptions", "dynamo_config", "dynamo_errors"]

_SETTERS = (  # The first from 2.13 on, the second before.
    (getattr(_builtin, "SetAttrBuiltinVariable", None), "_call_setattr"),
    (_builtin.BuiltinVariable, "call_setattr"),
)
ATTRIBUTE_SETTERS: tuple[tuple[Any, str], ...] = tuple(pair for pair in _SETTERS if hasattr(*pair))
"""Class and method by which Dynamo follows ``x.attribute = value``."""

if not ATTRIBUTE_SETTERS:
    with needed():
        raise AttributeError("the method of torch._dynamo.variables that follows setattr")


def tensor_methods(**follow: Callable[..., Any]) -> tuple[tuple[Any, str, Any], ...]:
    """Describe the changes (owner, name, value) with which Dynamo follows methods of tensors by other functions."""
    if _METHODS is None:
        return tuple((TensorVariable, f"method_{name}", function) for name, function in follow.items())
    return ((TensorVariable, "tp_methods", _METHODS | {name: _Method(function) for name, function in follow.items()}),)


OWN_HANDLERS: tuple[tuple[Any, str, Any], ...] = tuple(
    (owner, "call_function_handler_cache", {}) for owner, name in ATTRIBUTE_SETTERS if name == "call_setattr"
)
"""Change for a cache of its own: before 2.13 Dynamo keeps the methods that follow ``setattr`` there. None from then."""

IGNORED_CALLS = (
    "ignore_logging_functions" if hasattr(dynamo_config, "ignore_logging_functions") else "ignore_logger_methods"
)
"""Setting with the functions that Dynamo passes over. The first name from 2.12 on."""

WARNING_ONCE: Any = getattr(torch._logging, "warning_once", None)
"""PyTorch's own function that warns once. Models of libraries call it."""
