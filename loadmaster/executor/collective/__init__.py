"""The kind ``collective`` on the executor floor: plans run over ``torch.distributed``."""

from __future__ import annotations

from loadmaster.executor.collective.agreement import Place
from loadmaster.executor.collective.engine import Engine, ReferenceEngine
from loadmaster.executor.collective.faults import PeerError
from loadmaster.executor.collective.process_group import PlannedGroup
from loadmaster.executor.collective.reference import Runner
from loadmaster.executor.collective.switch import Switched, disable, stats, use

__all__ = [
    "Engine",
    "PeerError",
    "Place",
    "PlannedGroup",
    "ReferenceEngine",
    "Runner",
    "Switched",
    "disable",
    "stats",
    "use",
]
