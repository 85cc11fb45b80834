"""The planner floor: how each kind of problem is solved. ``plan(problem, options)`` is the door.

No torch, no web; every solve runs in a process of its own.
"""

from __future__ import annotations

from loadmaster.planner.options import PlanOptions, PlanProgress

__all__ = ["PlanOptions", "PlanProgress"]
