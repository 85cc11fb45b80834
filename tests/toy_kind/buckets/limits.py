"""What the limit of the kind ``buckets`` means."""

from __future__ import annotations

from buckets.problem import BucketsProblem


def whole(problem: BucketsProblem) -> int:
    """More messages than gradients are of no use."""
    return len(problem.gradients)


def points(problem: BucketsProblem, count: int) -> list[int]:
    """From one message to the whole, evenly spread."""
    last = whole(problem)
    return sorted({round(1 + (last - 1) * n / (count - 1)) for n in range(count)})
