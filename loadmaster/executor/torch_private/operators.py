"""Operators as PyTorch's dispatcher has them: their classes, schemas and fake implementations, and dispatch modes."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch

from loadmaster.executor.torch_private import needed

with needed():
    # Classes of ``torch.ops.aten.add.Tensor``, of ``torch.ops.aten.add``, and of operators that take functions. Targets
    # of graph nodes are told apart by them; no public module exports them.
    from torch._ops import HigherOrderOperator as HigherOrderOperator
    from torch._ops import OpOverload as OpOverload
    from torch._ops import OpOverloadPacket as OpOverloadPacket

    # Operators under which AOTAutograd and checkpoints draw random numbers again. Only their objects identify them.
    from torch._prims import rng_prims as rng_prims

    # Memory format of a result that follows its operand, as in PyTorch's own fake implementations.
    from torch._prims_common import suggest_memory_format as suggest_memory_format

    # Numbers that stand for "none", "mean" and "sum" in the arguments of aten's losses.
    from torch.nn import _reduction

    # Nested containers of tensors as FX, AOTAutograd and Dynamo flatten them. No public module does.
    from torch.utils import _pytree as pytree

    # Base class of modes that see every operator. Its documentation names this module; no public one has it.
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
    from torch.utils._python_dispatch import _disable_current_modes as without_dispatch_modes

    # Tensor subclasses made of inner tensors (DTensor, quantized ones), which have no memory of their own.
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass as is_traceable_wrapper_subclass

    # Check on the device that does not wait for it. Public ``torch._check`` takes Python values alone.
    assert_async: Callable[..., None] = torch._assert_async

    # ``__torch_function__`` of a subclass that wants none; the public ways switch it off for a block only.
    no_torch_function: Any = torch._C._disabled_torch_function_impl

    # Constructors of subclasses, with the memory of another tensor and without memory.
    make_subclass: Callable[..., Any] = torch.Tensor._make_subclass
    make_wrapper_subclass: Callable[..., Any] = torch.Tensor._make_wrapper_subclass

    # Collectives as operators of a graph. ``torch.distributed`` has no functional ones in public.
    functional_collectives: Any = torch.ops._c10d_functional

reduction_number: Callable[[str], int] = _reduction.get_enum
"""Number of a reduction ("none", "mean", "sum")."""

schema_of: Callable[[Any], torch._C.FunctionSchema] = attrgetter("_schema")
"""Schema of an overload: its name, arguments, aliases and whether it writes. Public names give only its name."""

overload_name_of: Callable[[Any], str] = attrgetter("_overloadname")
"""Name of an overload among those of its operator: "default", "Tensor"."""

overload_of: Callable[[Any], OpOverload] = attrgetter("_opoverload")
"""Overload behind a ``torch.library.custom_op``, the target of graph nodes; its public attributes do not have it."""

is_view_of_another: Callable[[Any], bool] = torch.Tensor._is_view
"""Whether autograd has a tensor down as a view of another."""

__all__ = ["pytree", "without_dispatch_modes"]


def schema_if_any(target: Any) -> torch._C.FunctionSchema | None:
    """Return the schema of an operator; None for other functions."""
    return getattr(target, "_schema", None)


def defining_modules(name: str) -> list[str]:
    """Names of the modules that define an operator ("mine::op") in Python, by ``torch.library``'s records; there is no
    public list."""
    found = []
    fake = torch._library.simple_registry.singleton.find(name).fake_impl.kernel
    if fake is not None:
        found.append(fake.func.__module__)
    made = torch._library.custom_ops.OPDEFS.get(name)
    if made is not None:
        found.append(made._init_fn.__module__)
    return found
