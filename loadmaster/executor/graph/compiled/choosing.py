"""Choice of the runner of a kernel: a generated one, or plain PyTorch."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from loadmaster.executor.graph.compiled.indices import Indices
from loadmaster.executor.graph.compiled.reference import ReferenceRunner
from loadmaster.executor.graph.compiled.runner import KernelRunner
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.schedule import Kernel
from loadmaster.models.graph.spaces import Space

logger = logging.getLogger(__name__)
_told: set[str] = set()


class KernelMaker:
    """Makes the runners of one kernel; what depends on the program alone is made once for all graphs.

    Runners are generated on a GPU where they can be, plain PyTorch elsewhere.

    Attributes:
        longest: (over, to), if a runner depends on how many rows of ``over`` one row of ``to`` has at the most.
    """

    def __init__(
        self, program: Program, kernel: Kernel, kept: frozenset[int], dtype: torch.dtype, device: torch.device
    ) -> None:
        """Prepare a kernel of a schedule.

        Args:
            kept: numbers of all values that kernels of the schedule store.
            dtype: of all values that are given.
            device: that graphs are on.
        """
        self.program, self.kernel, self.dtype = program, kernel, dtype
        self.longest: tuple[Space, Space] | None = None
        self._generate: Callable[[Indices], KernelRunner | None] | None = None
        if device.type == "cuda":
            from loadmaster.executor.graph.compiled.triton import TritonKernel

            generated = TritonKernel(program, kernel, kept, dtype)
            self.longest, self._generate = generated.longest, generated.on

    def on(self, indices: Indices) -> KernelRunner:
        """The runner on one graph."""
        if self._generate is not None:
            found = self._generate(indices)
            if found is not None:
                return found
            _tell(self.kernel)
        return ReferenceRunner(self.program, self.kernel, indices, self.dtype)


def _tell(kernel: Kernel) -> None:
    """Say once for each template that plain PyTorch runs kernels of it."""
    if kernel.template not in _told:
        _told.add(kernel.template)
        logger.info("Kernels of %s without a generated form run on PyTorch's own.", kernel.template)
