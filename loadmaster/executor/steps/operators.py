"""Custom operators whose call costs little: ``torch.library.custom_op`` looks at every result for memory of an operand,
which takes longer on the host than all the rest of a gather. Operators that return memory of their own need none of it,
nor a gradient's place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_library = torch.library.Library("loadmaster", "FRAGMENT")  # type: ignore[no-untyped-call]


def operator(schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Register a custom operator without a gradient, for every device, and return it.

    Args:
        schema: PyTorch's, "name(Tensor x, ...) -> Tensor"; what is written to is marked there, "Tensor(a!) y".
        run: what it does. Results share no memory with operands.
        fake: what it returns when only shapes are asked for.
    """
    name = _library.define(schema)  # type: ignore[no-untyped-call]
    _library.impl(name, run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"loadmaster::{name}", fake, lib=_library)
    return getattr(torch.ops.loadmaster, name).default
