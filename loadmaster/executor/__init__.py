"""PyTorch: capture and profile a model into a problem, apply a plan, hold what happened against it."""

from __future__ import annotations

from loadmaster.errors import MissingExtraError

try:
    import torch as _torch  # noqa: F401
except ImportError:
    raise MissingExtraError("torch", "torch") from None

from loadmaster.executor.memory.block import capture_block
from loadmaster.executor.memory.capture import capture
from loadmaster.executor.memory.fit.fit import fit
from loadmaster.executor.memory.fit.state import Fitted
from loadmaster.executor.memory.operators.implementation_filter import ImplementationFilter
from loadmaster.executor.memory.run.apply import PlannedStep, apply, apply_to_blocks
from loadmaster.executor.partition.apply import apply as apply_partition
from loadmaster.executor.partition.capture import capture as capture_partition
from loadmaster.executor.partition.graph_step import PartitionedStep
from loadmaster.executor.partition.module_step import ModuleStep
from loadmaster.executor.partition.split import split
from loadmaster.executor.placement.cache.tensor_cache import TensorCache
from loadmaster.executor.placement.capture import capture as capture_placement
from loadmaster.executor.placement.pager.pager import Pager
from loadmaster.executor.renamed import warn_renamed
from loadmaster.executor.steps.measure import Measurement, measure

__all__ = [
    "Fitted",
    "ImplementationFilter",
    "Measurement",
    "ModuleStep",
    "Pager",
    "PartitionedStep",
    "PlannedStep",
    "TensorCache",
    "apply",
    "apply_partition",
    "apply_to_blocks",
    "capture",
    "capture_block",
    "capture_partition",
    "capture_placement",
    "fit",
    "measure",
    "split",
]


def __getattr__(name: str) -> object:
    if name == "Offer":
        warn_renamed("loadmaster.executor.Offer", "ImplementationFilter")
        return ImplementationFilter
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
