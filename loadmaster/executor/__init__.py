"""PyTorch: capture and profile a model into a problem, apply a plan, compare what happened with it.

What it offers is loaded on first use: the room ``index`` needs no torch, and whoever wants only that loads none.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from loadmaster.errors import MissingExtraError
from loadmaster.executor.renamed import warn_renamed

if TYPE_CHECKING:
    from loadmaster.executor.fitting import fit
    from loadmaster.executor.memory.block import capture_block
    from loadmaster.executor.memory.capture import capture
    from loadmaster.executor.memory.fit.fitted import Fitted
    from loadmaster.executor.memory.implementations.registry import ImplementationFilter
    from loadmaster.executor.memory.run.apply import PlannedStep, apply, apply_to_blocks
    from loadmaster.executor.memory.run.knob_step import KnobStep
    from loadmaster.executor.partition.apply import apply as apply_partition
    from loadmaster.executor.partition.apply import split
    from loadmaster.executor.partition.capture import capture as capture_partition
    from loadmaster.executor.partition.graph_step import PartitionedStep
    from loadmaster.executor.partition.module_step import ModuleStep
    from loadmaster.executor.placement.cache.tensor_cache import TensorCache
    from loadmaster.executor.placement.capture import capture as capture_placement
    from loadmaster.executor.placement.pager.pager import Pager
    from loadmaster.executor.steps.measure import Measurement, measure
    from loadmaster.executor.training.capture import capture as capture_training
    from loadmaster.executor.training.step import TrainingStep
    from loadmaster.executor.training.train import PlannedTraining

__all__ = [
    "Fitted",
    "ImplementationFilter",
    "KnobStep",
    "Measurement",
    "ModuleStep",
    "Pager",
    "PartitionedStep",
    "PlannedStep",
    "PlannedTraining",
    "TensorCache",
    "TrainingStep",
    "apply",
    "apply_partition",
    "apply_to_blocks",
    "capture",
    "capture_block",
    "capture_partition",
    "capture_placement",
    "capture_training",
    "fit",
    "measure",
    "split",
]

# Public name -> its module and its name there.
_HOME = {
    "Fitted": ("loadmaster.executor.memory.fit.fitted", "Fitted"),
    "ImplementationFilter": ("loadmaster.executor.memory.implementations.registry", "ImplementationFilter"),
    "KnobStep": ("loadmaster.executor.memory.run.knob_step", "KnobStep"),
    "Measurement": ("loadmaster.executor.steps.measure", "Measurement"),
    "ModuleStep": ("loadmaster.executor.partition.module_step", "ModuleStep"),
    "Pager": ("loadmaster.executor.placement.pager.pager", "Pager"),
    "PartitionedStep": ("loadmaster.executor.partition.graph_step", "PartitionedStep"),
    "PlannedStep": ("loadmaster.executor.memory.run.apply", "PlannedStep"),
    "PlannedTraining": ("loadmaster.executor.training.train", "PlannedTraining"),
    "TensorCache": ("loadmaster.executor.placement.cache.tensor_cache", "TensorCache"),
    "TrainingStep": ("loadmaster.executor.training.step", "TrainingStep"),
    "apply": ("loadmaster.executor.memory.run.apply", "apply"),
    "apply_partition": ("loadmaster.executor.partition.apply", "apply"),
    "apply_to_blocks": ("loadmaster.executor.memory.run.apply", "apply_to_blocks"),
    "capture": ("loadmaster.executor.memory.capture", "capture"),
    "capture_block": ("loadmaster.executor.memory.block", "capture_block"),
    "capture_partition": ("loadmaster.executor.partition.capture", "capture"),
    "capture_placement": ("loadmaster.executor.placement.capture", "capture"),
    "capture_training": ("loadmaster.executor.training.capture", "capture"),
    "fit": ("loadmaster.executor.fitting", "fit"),
    "measure": ("loadmaster.executor.steps.measure", "measure"),
    "split": ("loadmaster.executor.partition.apply", "split"),
}


def __getattr__(name: str) -> object:
    if name == "Offer":
        warn_renamed("loadmaster.executor.Offer", "ImplementationFilter")
        name = "ImplementationFilter"
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if find_spec("torch") is None:
        raise MissingExtraError("torch", "torch")
    module, own_name = _HOME[name]
    return getattr(import_module(module), own_name)
