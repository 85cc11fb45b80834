"""The kind ``collective`` on the executor floor: plans run over ``torch.distributed``."""

from __future__ import annotations

from loadmaster.errors import MissingExtraError

try:
    import torch as _torch  # noqa: F401
except ImportError:
    raise MissingExtraError("torch", "torch") from None

from loadmaster.executor.collective.agreement import Place
from loadmaster.executor.collective.engine import Engine, ReferenceEngine, Runner
from loadmaster.executor.collective.faults import PeerError
from loadmaster.executor.collective.install import Installed, disable, stats, use
from loadmaster.executor.collective.process_group import PlannedGroup
from loadmaster.executor.renamed import warn_renamed

__all__ = [
    "Engine",
    "Installed",
    "PeerError",
    "Place",
    "PlannedGroup",
    "ReferenceEngine",
    "Runner",
    "disable",
    "stats",
    "use",
]


def __getattr__(name: str) -> object:
    if name == "Switched":
        warn_renamed("loadmaster.executor.collective.Switched", "Installed")
        return Installed
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
