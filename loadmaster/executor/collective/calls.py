"""Calls of a process group in the terms of a plan, read from their tensors and options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from loadmaster.models.collective.problem import Collective

Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True)
class Call:
    """A collective that somebody asked for.

    Attributes:
        output, input: None: not on this rank.
        size_bytes: of the largest buffer of a rank.
        filled: what the call's future holds.
        later: the caller goes on without it.
        after: once the output is there.
        shared: in memory that all ranks share, where the inner group has nothing like it.
    """

    collective: Collective
    output: torch.Tensor | None
    input: torch.Tensor | None
    size_bytes: int
    filled: Tensors
    later: bool
    op: object = dist.ReduceOp.SUM
    root: int | None = None
    after: Callable[[], None] | None = None
    shared: bool = False

    @property
    def tensor(self) -> torch.Tensor:
        """A tensor of the call that is on this rank."""
        found = self.output if self.output is not None else self.input
        assert found is not None
        return found


def later_of(opts: Any) -> bool:
    """Return whether the caller goes on without waiting, as options of C++ have it unless told otherwise."""
    return bool(getattr(opts, "asyncOp", True))


def op_of(opts: Any) -> object:
    """Return the operator of a sum, SUM where the options name none."""
    return getattr(opts, "reduceOp", dist.ReduceOp.SUM)


def even(tensors: Tensors, one: torch.Tensor) -> bool:
    """Return whether all tensors are as long as one: sizes are the same on every rank, shapes need not be."""
    return all(t.numel() == one.numel() and t.dtype == one.dtype for t in tensors)


def stacked(tensors: Tensors) -> torch.Tensor:
    """Stack tensors into one, each flattened to a row."""
    return torch.stack([tensor.reshape(-1) for tensor in tensors])


def spreading(together: torch.Tensor | None, outputs: Tensors) -> Callable[[], None]:
    """Make a function that copies the rows of a tensor to the outputs where they belong."""

    def spread() -> None:
        if together is not None:
            for output, piece in zip(outputs, together.unbind(), strict=True):
                output.copy_(piece.view(output.shape))

    return spread


def laid_out(tensor: torch.Tensor | None, more_bytes: int) -> tuple[torch.Tensor | None, Callable[[], None] | None]:
    """Lay a tensor out flat, so many bytes of zeros behind it; return it, and how to bring what comes there back."""
    if tensor is None:
        return None, None
    if not more_bytes and tensor.is_contiguous():
        return tensor.view(-1), None
    home, count = tensor, tensor.numel()
    flat = home.new_zeros(count + more_bytes // home.element_size())
    flat[:count].copy_(home.reshape(-1))

    def bring_back() -> None:
        home.copy_(flat[:count].view(home.shape))

    return flat, bring_back
