"""Loadmaster plans deep-learning training by optimization: a plan in seconds, with a proof, run in your own loop.

>>> import loadmaster
>>> plan = loadmaster.plan("problem.json", budget_bytes="8GiB")      # doctest: +SKIP

Importing this package is cheap: what it offers is loaded on first use, and no floor is imported that is not asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loadmaster.api.client import AsyncClient, Client
    from loadmaster.api.report.notebook import show
    from loadmaster.models.fit_record import FitRecord, load_fit
    from loadmaster.models.kinds import (
        check_plan,
        load_plan,
        load_problem,
        read_plan,
        read_problem,
        write_plan,
        write_problem,
    )
    from loadmaster.planner import PlanOptions, PlanProgress, frontier, plan

__version__ = "0.2.0"

__all__ = [
    "AsyncClient",
    "Client",
    "FitRecord",
    "PlanOptions",
    "PlanProgress",
    "check_plan",
    "frontier",
    "load_fit",
    "load_plan",
    "load_problem",
    "plan",
    "read_plan",
    "read_problem",
    "show",
    "write_plan",
    "write_problem",
]

_HOME = {
    "AsyncClient": "loadmaster.api.client",
    "Client": "loadmaster.api.client",
    "FitRecord": "loadmaster.models.fit_record",
    "PlanOptions": "loadmaster.planner",
    "PlanProgress": "loadmaster.planner",
    "check_plan": "loadmaster.models.kinds",
    "frontier": "loadmaster.planner",
    "load_fit": "loadmaster.models.fit_record",
    "load_plan": "loadmaster.models.kinds",
    "load_problem": "loadmaster.models.kinds",
    "plan": "loadmaster.planner",
    "read_plan": "loadmaster.models.kinds",
    "read_problem": "loadmaster.models.kinds",
    "show": "loadmaster.api.report.notebook",
    "write_plan": "loadmaster.models.kinds",
    "write_problem": "loadmaster.models.kinds",
}


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'loadmaster' has no attribute {name!r}")
    return getattr(import_module(home), name)
