"""Clipping of gradients by their global norm, where some are on the host by then, or each value by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future

import torch
from torch import Tensor

from loadmaster.executor.training.copies import Move, Mover

# Change of a complete gradient, in place.
Clip = Callable[[Tensor], object]


class Clipping:
    """Norm of all gradients of a step, and the factor that makes it at most ``max_norm``; or values at most
    ``max_value``, either way; both None: gradients stay as they are.

    Attributes:
        norm: that of the latest step before clipping, as ``clip_grad_norm_`` returns it; None without ``max_norm``.
    """

    def __init__(self, max_norm: float | None, max_value: float | None = None) -> None:
        self._max_norm = max_norm
        self._norms: list[Tensor] = []
        self._clip: Clip | None = None
        if max_value is not None:
            self._clip = lambda gradient: gradient.clamp_(-max_value, max_value)
        self._on_host: Future[Clip | None] = Future()
        if max_norm is None:
            self._on_host.set_result(self._clip)
        self.norm: Tensor | None = None
        self._sent: tuple[Tensor, Move] | None = None  # the factor, on its way to the host

    def note(self, gradients: Sequence[tuple[Tensor, torch.dtype]]) -> None:
        """Take the norms of gradients that leave the device, each in the format of its master weights, as plain PyTorch
        has the gradient."""
        if self._max_norm is not None:
            self._norms += [torch.linalg.vector_norm(g, dtype=dtype) for g, dtype in gradients]

    @torch.no_grad()
    def end_step(self, gradients: Sequence[tuple[Tensor, torch.dtype]], mover: Mover) -> None:
        """Take the norms of all other gradients; the factor is known from now on."""
        if self._max_norm is None:
            return
        self.note(gradients)
        self.norm = torch.linalg.vector_norm(torch.stack(self._norms)) if self._norms else torch.zeros(())
        factor = torch.clamp(self._max_norm / (self.norm + 1e-6), max=1.0)
        there = mover.host_buffer(factor.element_size()).view(factor.dtype)
        if self._sent is not None:
            self._sent[1].wait()  # before its memory is free
        move = mover.store([(there, factor.view(1))], [mover.mark()])
        self._sent = factor, move

        def on_host(gradient: Tensor) -> None:
            move.finish()
            gradient.mul_(there[0])

        self._clip = lambda gradient: gradient.mul_(factor)
        of_step, self._on_host, self._norms = self._on_host, Future(), []
        of_step.set_result(on_host)

    def abandon(self, error: Exception) -> None:
        """Let updates on the host that wait for the norm fail: the step that runs does not come to its end."""
        if not self._on_host.done():
            self._on_host.set_exception(error)

    @property
    def on_device(self) -> Clip | None:
        """Clip of the latest step's gradients, on the device."""
        return self._clip

    @property
    def on_host(self) -> Future[Clip | None]:
        """Clip of the gradients of the step that runs, on the host: known once its norm is."""
        return self._on_host
