"""Operators that a child finds by importing this module; some end it."""

from __future__ import annotations

import os
import signal
import sys

import torch


@torch.library.custom_op("loadmaster_deadly::fine", mutates_args=())
def fine(x: torch.Tensor, times: int) -> torch.Tensor:
    sys.stdout.write("an operator may print\n")
    for _ in range(times):
        x = x + 1
    return x.clone()


@torch.library.custom_op("loadmaster_deadly::deadly", mutates_args=())
def deadly(x: torch.Tensor) -> torch.Tensor:
    os.kill(os.getpid(), signal.SIGSEGV)
    return x.clone()


@torch.library.custom_op("loadmaster_deadly::raising", mutates_args=())
def raising(x: torch.Tensor) -> torch.Tensor:
    raise KeyError("whatever an operator raises")


@torch.library.custom_op("loadmaster_deadly::asserting", mutates_args=())
def asserting(x: torch.Tensor) -> torch.Tensor:
    return x[torch.full((1,), x.shape[0], device=x.device)].clone()


@asserting.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(1, *x.shape[1:])


@fine.register_fake
def _(x: torch.Tensor, times: int) -> torch.Tensor:
    return torch.empty_like(x)


for _alike in (deadly, raising):
    _alike.register_fake(torch.empty_like)
