"""Interface of engines to the compiled backend: launches, complete but for two addresses, and what launches them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch

from loadmaster.models.collective.plan import Algorithm


class Launcher(Protocol):
    """Launcher of kernels, and what it needs of Python.

    Attributes:
        device: of the tensors.
        enqueue_address: of a function as ``cuLaunchKernel``. Its only argument begins with the addresses of input and
            output.
        stream_address: of the handle of the stream that the last call ran on.
        failure_address: of a word that is not zero once a kernel waited in vain.
    """

    device: torch.device
    enqueue_address: int
    stream_address: int
    failure_address: int

    def order(self, stream: int) -> None:
        """Let a stream, the current one, come after the last one from here on."""
        ...

    def raise_failure(self) -> None:
        """Raise PeerError for what was waited for in vain."""
        ...


class PreparedLaunch(Protocol):
    """One launch of a call.

    Attributes:
        address: function, blocks, threads, address of what is passed, and where in every buffer it begins.
    """

    @property
    def address(self) -> tuple[int, int, int, int, int]: ...


class PreparedCall(Protocol):
    """Bytes and launches that a call of one size takes on this rank."""

    @property
    def input_bytes(self) -> int: ...

    @property
    def output_bytes(self) -> int: ...

    @property
    def launches(self) -> Sequence[PreparedLaunch]: ...


@runtime_checkable
class LaunchEngine(Protocol):
    """An engine whose calls are launches."""

    @property
    def name(self) -> str: ...

    @property
    def launcher(self) -> Launcher | None:
        """Launcher of the group, the same for all its engines. None: the engine cannot launch here."""
        ...

    def empty(self, size_bytes: int) -> tuple[torch.Tensor, int] | None:
        """Make memory that all ranks share, with its number. None: ranks share none."""
        ...

    def prepared(
        self, algorithm: Algorithm, size_bytes: int, dtype: torch.dtype | None, region: int | None = None
    ) -> PreparedCall:
        """The launches of a call; they stay as long as the engine does.

        Args:
            region: number of the shared memory that holds the output (of a ReduceScatter, the input).
        """
        ...
