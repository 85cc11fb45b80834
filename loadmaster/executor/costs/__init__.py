"""Cost models of operators: measured on the device at hand, or estimated for a device of the hardware catalogue."""

from __future__ import annotations

from loadmaster.executor.costs.model import CostModel
from loadmaster.executor.costs.profiled import profiled
from loadmaster.executor.costs.roofline import roofline

__all__ = ["CostModel", "profiled", "roofline"]
