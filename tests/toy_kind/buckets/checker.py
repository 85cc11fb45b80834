"""Sends the messages of a plan one after the other, without a look at how they were chosen."""

from __future__ import annotations

from dataclasses import dataclass

from buckets.problem import BucketsPlan, BucketsProblem
from loadmaster.errors import InputError
from loadmaster.models.documents import expect_problem


@dataclass(frozen=True)
class Check:
    """The verdict: what is wrong, and when each message starts and ends."""

    violations: tuple[str, ...]
    sent_us: tuple[tuple[float, float], ...]

    @property
    def ok(self) -> bool:
        """Whether the plan holds."""
        return not self.violations

    @property
    def objective(self) -> float:
        """When the last message has arrived."""
        return self.sent_us[-1][1] if self.sent_us else 0.0

    def summary(self) -> dict[str, object]:
        """What the plan records of it."""
        return {"ok": self.ok, "time_us": self.objective}


def check_plan(problem: BucketsProblem, plan: BucketsPlan) -> Check:
    """Replay a plan.

    Raises:
        InputError: the plan is of another problem, or infeasible.
    """
    expect_problem(plan.problem_sha256, problem.sha256)
    if plan.status == "infeasible":
        raise InputError("status", plan.status, "there are no messages to send", "Check a plan that was found.")
    return check(problem, plan.ends, plan.messages)


def check(problem: BucketsProblem, ends: tuple[int, ...], messages: int) -> Check:
    """Send gradients up to each of ``ends``, a message waiting for its last gradient and for the one before it."""
    wrong = []
    if len(ends) > messages:
        wrong.append(f"{len(ends)} messages are more than the {messages} allowed")
    if list(ends) != sorted(set(ends)) or (ends[:1] <= (0,)) or ends[-1:] != (len(problem.gradients),):
        wrong.append(f"ends {list(ends)} leave gradients out, or send some twice")
        return Check(tuple(wrong), ())
    sent, clock_us, first = [], 0.0, 0
    for end in ends:
        start_us = max(clock_us, problem.gradients[end - 1].ready_us)
        clock_us = start_us + problem.message_us(first, end)
        sent.append((start_us, clock_us))
        first = end
    return Check(tuple(wrong), tuple(sent))
