"""The policies by name, and a run of one of them."""

from __future__ import annotations

from collections.abc import Callable

from loadmaster.errors import InputError
from loadmaster.models.placement.policies.correlation import Correlation
from loadmaster.models.placement.policies.eviction import Belady, Lru
from loadmaster.models.placement.policies.outcome import PolicyRun, of_log
from loadmaster.models.placement.policies.policy import Policy
from loadmaster.models.placement.policies.simulator import STEPS, replay_under
from loadmaster.models.placement.problem import PlacementProblem

POLICIES: dict[str, Callable[[PlacementProblem], Policy]] = {
    "lru": lambda problem: Lru(),
    "belady": Belady,
    "correlation": Correlation,
}


def run_policy(
    problem: PlacementProblem,
    policy: str | Policy,
    budget_bytes: int,
    *,
    steps: int = STEPS,
    invalidate: bool = True,
    tier: int = 0,
) -> PolicyRun:
    """The step under a policy: one of :data:`POLICIES` as it is by default, or one that was made with other parameters.

    Raises:
        InputError: no policy has this name, or an operator alone needs more than the budget.
    """
    if isinstance(policy, str):
        if policy not in POLICIES:
            raise InputError("policy", policy, "is no policy", f"Choose one of: {', '.join(POLICIES)}.")
        policy = POLICIES[policy](problem)
    log = replay_under(problem, policy, budget_bytes, steps=steps, invalidate=invalidate, tier=tier)
    return of_log(problem, policy.name, log, tier)
