"""Process groups: their registers, backends and stores, and memory that GPUs share.

A group in another one's place must be known wherever PyTorch looks groups up; nothing public enters one there.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from loadmaster.executor.torch_private import needed

with needed():
    # Groups by name, as functional collectives and C++ find them.
    from torch._C._distributed_c10d import _register_process_group as register_group
    from torch._C._distributed_c10d import _unregister_process_group as unregister_group

    # The default group (``dist.group.WORLD`` is typed as optional, and None in silence), and its replacement.
    default_group: Callable[[], dist.ProcessGroup] = c10d._get_default_group
    replace_default_group: Callable[[dist.ProcessGroup], None] = c10d._update_default_pg

    # Key-value store of a group, for messages between ranks when collectives no longer work.
    store_of: Callable[[dist.ProcessGroup], Any] = c10d._get_process_group_store

    # Backends of a group by device.
    backend_of: Callable[..., Any] = dist.ProcessGroup._get_backend
    register_backend: Callable[..., None] = dist.ProcessGroup._register_backend
    set_default_backend: Callable[..., None] = dist.ProcessGroup._set_default_backend
    set_group_name: Callable[..., None] = dist.ProcessGroup._set_group_name

__all__ = ["register_group", "unregister_group"]

device_types_of: Callable[[dist.ProcessGroup], list[torch.device]] = attrgetter("_device_types")
"""Kinds of devices that a group has backends for."""


def world() -> Any:
    """Return the registers in which ``torch.distributed`` looks groups up."""
    return c10d._world


MakeP2POp = Callable[..., None]
make_p2p_op: MakeP2POp = dist.P2POp.__init__


def replace_make_p2p_op(by: MakeP2POp) -> None:
    """Replace the constructor of ``P2POp``, which is told which group it sends in and asks nobody else."""
    dist.P2POp.__init__ = by  # type: ignore[method-assign]


def symmetric_memory() -> Any:
    """Return the module of memory that the GPUs of a group share: ``empty`` and ``rendezvous``."""
    with needed():
        import torch.distributed._symmetric_memory as symmetric

    return symmetric
