"""A provable lower bound on the budget: what must be resident at some operator whatever is kept.

Every forward operator runs in the forward pass next to its live inputs, every backward operator next to what the
chosen implementation needs. No choice of keeping, recomputing or offloading avoids that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from loadmaster.models.memory.plan import Blocker
from loadmaster.models.memory.problem import BackwardImplementation, MemoryProblem


@dataclass(frozen=True)
class MinimumBudget:
    """No plan exists under a budget below ``budget_bytes``, which the operator ``where`` sets. ``blockers``: what is
    resident there, largest first; their sizes add up to ``budget_bytes`` (a workspace that saves memory, as of an
    in-place operator, is taken off the largest)."""

    budget_bytes: int
    where: str
    blockers: tuple[Blocker, ...]


def minimum_budget(problem: MemoryProblem) -> MinimumBudget:
    """The operator whose unavoidable residents are largest."""
    candidates = [_forward(problem, f.id) for f in problem.forward if f.encodes is None]
    for k in range(1, problem.stage_count):
        ways = [_backward(problem, k, c) for c in problem.backward[k - 1].implementations]
        candidates.append(min(ways, key=lambda m: m.budget_bytes))
    return max(candidates, key=lambda m: m.budget_bytes)


def _forward(problem: MemoryProblem, i: int) -> MinimumBudget:
    """Forward operator i in the forward pass: gradients, fixed bytes, live inputs, result, least workspace."""
    operator = problem.forward[i]
    workspace = min(c.workspace_bytes for c in operator.implementations)
    if operator.in_place is not None:
        workspace += min(0, operator.in_place.workspace_delta_bytes)
    parts = [_tensor(problem, j) for j in operator.live_inputs]
    unlisted = operator.live_bytes - sum(p.size_bytes for p in parts)
    parts += [
        Blocker(f"output of {operator.words}", operator.op, operator.output_bytes, operator.module),
        Blocker("other live inputs", operator.op, unlisted),
        Blocker("workspace", operator.op, workspace),
        Blocker("parameters, gradients and inputs", operator.op, problem.gradient_bytes(0)),
    ]
    return _sum_up(operator.label, parts)


def _backward(problem: MemoryProblem, k: int, choice: BackwardImplementation) -> MinimumBudget:
    """Backward operator k with one implementation: its needs, gradients in and out, fixed bytes, workspace."""
    operator = problem.backward[k - 1]
    parts = [_tensor(problem, j) for j in choice.needs]
    parts += [
        Blocker(f"gradient from {operator.words}", operator.op, operator.output_bytes, operator.module),
        Blocker("live gradients", operator.op, operator.live_bytes),
        Blocker("workspace", operator.op, choice.workspace_bytes),
        Blocker("parameters, gradients and inputs", operator.op, operator.fixed_bytes),
    ]
    return _sum_up(operator.label, parts)


def _tensor(problem: MemoryProblem, i: int) -> Blocker:
    operator = problem.forward[i]
    return Blocker(operator.made_by or f"forward {i}", operator.op, operator.output_bytes, operator.module)


def _sum_up(where: str, parts: list[Blocker]) -> MinimumBudget:
    total = sum(p.size_bytes for p in parts)
    saved = sum(p.size_bytes for p in parts if p.size_bytes < 0)
    held = sorted((p for p in parts if p.size_bytes > 0), key=lambda p: -p.size_bytes)
    if saved and held:
        held[0] = replace(held[0], size_bytes=max(0, held[0].size_bytes + saved))
    return MinimumBudget(max(0, total), where, tuple(sorted(held, key=lambda p: -p.size_bytes)))
