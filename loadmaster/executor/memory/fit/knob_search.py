"""Search for the ``activation_memory_budget`` of torch.compile that keeps a budget and is the fastest, in few tries.

Each try is a compilation, as long as the user's own. Times are all but monotone in the knob: the less is kept, the more
is computed again. Peaks are not: below some knob the backward pass computes much again at once, and takes more than at
a higher one (BERT-large in ``benchmarks/results/memory_gpu.json``). So the highest knob that keeps the budget is looked
for. The search begins where the budget is between nothing kept and everything, goes on at points spread over the range
until one keeps it, then towards the lowest one above that does not. While none keeps it, it stays on the side of the
least peak: two peaks at low knobs say what a higher one takes. It ends where little can be won: the constants below
suit the models and knobs in that file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# In this order, while none keeps the budget; the first is the one that is nearest to where the budget is.
SPREAD = (1.0, 0.5, 0.2, 0.75, 0.1)
LEAST_STEP = 0.06  # of the knob: closer ones hardly differ
NEARLY_FULL = 0.95  # of the budget: a higher knob has no room
SAME_PEAK = 0.005  # of a peak: the knob does not move what takes so nearly the same at 1 and at a half
LEAST_GAIN = 0.02  # of the step's time: less is not worth a compilation
LEAST_WHOLE = 0.5  # of what plain PyTorch keeps: a compiled step that computes nothing again keeps that at least (0.55)
FAR = 1.25  # of the budget: what the best of two takes where another one hardly keeps it
_LOW = 0.2  # below a half peaks hardly fall any more
_COMPILED = 1.25  # by how much a knob may be above the share that the captured step tells of
NOISE = 0.03  # of a time: how far times are from monotone
# Of the forward pass at most all is computed again, which is about a third of a step: of six models on an H200 no step
# took more than 1.29 of the one at 1.
RECOMPUTED_SHARE = 1 / 3


@dataclass(frozen=True)
class Probe:
    """A knob that was tried, in this process or before.

    Attributes:
        used_bytes: what counts against a budget.
        ran_out: the device ran out of memory: the bytes are what it takes at least, the time is unknown.
    """

    knob: float
    used_bytes: int
    step_us: float
    ran_out: bool = False

    def keeps(self, budget_bytes: int) -> bool:
        """Return whether the step stayed within the budget."""
        return not self.ran_out and self.used_bytes <= budget_bytes


def next_knob(
    probes: Sequence[Probe], budget_bytes: int, share: float = 1.0, *, only_hope: bool = False
) -> float | None:
    """Return the knob to try next; None where no other knob is likely to do better.

    Args:
        share: where the budget is, as far as the captured step tells: at 0 nothing is kept for the backward pass, at
            1 all. Its peak is that of plain PyTorch; a compiled step takes less.
        only_hope: nothing but the knob can keep the budget, so that unlikely ones are tried too. Of a step in several
            graphs it may move nothing at a half and more than half of the peak at a fifth (BART-large).
    """
    kept = max((p for p in probes if p.keeps(budget_bytes)), key=lambda p: p.knob, default=None)
    if kept is None:
        tried = {p.knob: p for p in probes}
        if not only_hope and all(k in tried for k in SPREAD[:2]) and _same_peak(*(tried[k] for k in SPREAD[:2])):
            return None
        if len(tried) > 1 and min(tried) <= _LOW and min(p.used_bytes for p in probes) > FAR * budget_bytes:
            return None
        left = [k for k in SPREAD if all(abs(k - t) >= LEAST_STEP for t in tried)]
        left = [k for k in left if not _is_behind_a_higher(k, probes)]
        within = [k for k in left if k <= _COMPILED * share]
        return (within[0] if tried else max(within)) if within else min(left, default=None)
    above = min((p for p in probes if p.knob > kept.knob), key=lambda p: p.knob, default=None)
    if above is None:
        if kept.knob >= 1.0 or kept.used_bytes >= NEARLY_FULL * budget_bytes:
            return None
        higher = min(k for k in SPREAD if k > kept.knob)
        return None if higher == 1.0 and share < LEAST_WHOLE else higher
    gain = 1.0 - above.step_us / kept.step_us if above.step_us and kept.step_us else 1.0
    is_close = above.knob - kept.knob < 2 * LEAST_STEP or kept.used_bytes >= NEARLY_FULL * budget_bytes
    # Half-way, half of it is to be won.
    return None if is_close or gain / 2 < LEAST_GAIN else (kept.knob + above.knob) / 2


def _is_behind_a_higher(knob: float, probes: Sequence[Probe]) -> bool:
    """Return whether a knob between this one and the one of the least peak was tried, and took more than that."""
    least = min(probes, key=lambda p: p.used_bytes, default=None)
    return least is not None and any(
        min(knob, least.knob) < p.knob < max(knob, least.knob) and p.used_bytes > least.used_bytes for p in probes
    )


def _same_peak(one: Probe, other: Probe) -> bool:
    apart_bytes = abs(one.used_bytes - other.used_bytes)
    return not (one.ran_out or other.ran_out) and apart_bytes < SAME_PEAK * one.used_bytes


def at_least_us(probes: Sequence[Probe], knob: float) -> float:
    """Lower bound of a step's time at the knob: as long as one at a higher knob took, or as one at a lower knob took
    if that computed the whole forward pass again.
    """
    timed = [p for p in probes if not p.ran_out]
    return (1.0 - NOISE) * max(
        max((p.step_us for p in timed if p.knob >= knob), default=0.0),
        max((p.step_us for p in timed if p.knob < knob), default=0.0) / (1.0 + RECOMPUTED_SHARE),
    )


def expected_us(probes: Sequence[Probe], knob: float) -> float:
    """Expected time of a step at the knob: more than at the next higher one by what is computed again, or less than at
    the next lower one by what is not. 0 where nothing is known.
    """
    timed = sorted((p for p in probes if not p.ran_out), key=lambda p: p.knob)
    above = next((p for p in timed if p.knob >= knob), None)
    if above is not None:
        return above.step_us * (1.0 + RECOMPUTED_SHARE * (above.knob - knob))
    return timed[-1].step_us / (1.0 + RECOMPUTED_SHARE * (knob - timed[-1].knob)) if timed else 0.0
