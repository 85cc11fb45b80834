"""Options of a step's training and of what its plan may use, which capture, fit and their commands pass on."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from loadmaster.executor.costs import CostModel
from loadmaster.executor.memory.operators.implementation_filter import EVERYTHING, ImplementationFilter
from loadmaster.executor.memory.run.backends import Backend
from loadmaster.executor.steps.wrappers import Parallel
from loadmaster.models.hardware import HostLink


@dataclass(frozen=True, kw_only=True, eq=False)
class CaptureOptions:
    """The keywords of :func:`~loadmaster.executor.memory.capture.capture`, which says what each means."""

    optimizer: torch.optim.Optimizer | None = None
    hardware: str | None = None
    costs: CostModel | None = None
    backend: Backend = "inductor"
    gradients_held: bool = False
    parallel: Parallel | None = None
    ranks: int = 1
    host_link: HostLink | bool = False
    implementations: ImplementationFilter = EVERYTHING
    name: str | None = None
    progress: bool | None = None
