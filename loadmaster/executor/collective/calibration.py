"""Which planned calls are faster than the inner group's: measured, when plans are switched on, through the same calls.

Sizes are powers of two; both groups take turns, and the slowest rank counts. A size between two measured ones is
planned where both are won.
"""

from __future__ import annotations

import bisect
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from loadmaster.errors import InputError
from loadmaster.models.collective.problem import Collective

KIB, MIB = 1 << 10, 1 << 20
_SMALLEST_BYTES, _LARGEST_BYTES = KIB, 1 << 30
# Buffers of a call take at most this part of the memory that is free.
_SHARE = 8
_SAMPLES = 5


@dataclass(frozen=True)
class Timing:
    """One size of one collective: microseconds a call takes by plan, and in the inner group."""

    collective: Collective
    size_bytes: int
    planned_us: float
    inner_us: float

    @property
    def won(self) -> bool:
        return self.planned_us < self.inner_us


@dataclass(frozen=True)
class Calibration:
    """What was measured, on what. ``print`` shows a table.

    Attributes:
        device: name of the GPU, or "cpu".
        ranks: of the group.
        plans: what was planned, as ranks agreed on it.
        timings: by collective and size.
    """

    device: str
    ranks: int
    plans: tuple[str, ...]
    timings: tuple[Timing, ...]

    def wins(self, collective: Collective, size_bytes: int) -> bool:
        """Whether a call of that size is to be planned. One of a collective that was not measured is."""
        measured = [t for t in self.timings if t.collective == collective]
        if not measured:
            return True
        at = bisect.bisect_left([t.size_bytes for t in measured], size_bytes)
        if at < len(measured) and measured[at].size_bytes == size_bytes:
            return measured[at].won
        return all(t.won for t in measured[max(0, at - 1) : at + 1])

    def save(self, path: str | Path) -> None:
        """Write it, to be given to ``use(..., calibrate=path)``."""
        Path(path).write_text(json.dumps(asdict(self), indent=1) + "\n", "utf-8")

    @staticmethod
    def load(path: str | Path) -> Calibration:
        """Read what :meth:`save` wrote.

        Raises:
            InputError: no such file, or another content.
        """
        try:
            read = json.loads(Path(path).read_text("utf-8"))
            timings = tuple(Timing(**timing) for timing in read["timings"])
            return Calibration(str(read["device"]), int(read["ranks"]), tuple(read["plans"]), timings)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise InputError(
                "calibrate", str(path), f"is no calibration: {error}", "Measure: calibrate=True."
            ) from error

    def __str__(self) -> str:
        lines = [f"{self.ranks} ranks of {self.device}", "collective           bytes  planned us  inner us  runs"]
        lines += [
            f"{t.collective:14} {t.size_bytes:>11,} {t.planned_us:>11.1f} {t.inner_us:>9.1f}  "
            f"{'planned' if t.won else 'inner'}"
            for t in self.timings
        ]
        return "\n".join(lines)


def device_name(device: torch.device) -> str:
    """As :class:`Calibration` names it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def expect_fitting(calibration: Calibration, device: torch.device, ranks: int, plans: Sequence[str]) -> None:
    """Refuse what was measured elsewhere.

    Raises:
        InputError: another GPU, number of ranks, or other plans.
    """
    for what, was, here in (
        ("device", calibration.device, device_name(device)),
        ("ranks", calibration.ranks, ranks),
        ("plans", list(calibration.plans), list(plans)),
    ):
        if was != here:
            raise InputError(f"calibrate.{what}", was, f"was measured, here it is {here}", "Measure: calibrate=True.")


def calibrate(
    planned: dist.ProcessGroup,
    inner: dist.ProcessGroup,
    collectives: Sequence[tuple[Collective, int]],
    device: torch.device,
    plans: Sequence[str],
    largest_bytes: int | None = None,
) -> Calibration:
    """Time planned calls beside the inner group's. Every rank of the group calls it.

    Args:
        planned: has no calibration yet.
        inner: what it wraps.
        collectives: those that are planned and take no root, with the fewest bytes that they are planned from.
        device: of the tensors.
        plans: what was planned, for :class:`Calibration`.
        largest_bytes: what is larger is not planned.
    """
    most_bytes = min(_LARGEST_BYTES, largest_bytes or _LARGEST_BYTES, _free_bytes(device, inner) // _SHARE)
    found: list[tuple[Collective, int, list[float]]] = []
    for collective, from_bytes in collectives:
        size = max(_SMALLEST_BYTES, 1 << (max(1, from_bytes) - 1).bit_length())
        while size <= most_bytes:
            call = call_of(collective, size, device, inner.size())
            found.append((collective, size, _microseconds(call, (planned, inner), size, device)))
            del call
            size *= 2
    said: list[Any] = [None] * inner.size()
    dist.all_gather_object(said, [times for _, _, times in found], group=inner)
    timings = tuple(
        Timing(collective, size, *(max(of_rank[row][way] for of_rank in said) for way in (0, 1)))
        for row, (collective, size, _) in enumerate(found)
    )
    return Calibration(device_name(device), inner.size(), tuple(plans), timings)


def call_of(
    collective: Collective, size_bytes: int, device: torch.device, ranks: int
) -> Callable[[dist.ProcessGroup], object]:
    """A call of ``torch.distributed`` on a group, of so many bytes in the largest buffer of a rank."""
    count = max(ranks, size_bytes // 2 // ranks * ranks)
    whole = torch.zeros(count, dtype=torch.bfloat16, device=device)
    part = torch.zeros(count // ranks, dtype=torch.bfloat16, device=device)
    if collective == "allreduce":
        return lambda group: dist.all_reduce(whole, group=group)
    if collective == "allgather":
        return lambda group: dist.all_gather_into_tensor(whole, part, group=group)
    if collective == "reduce_scatter":
        return lambda group: dist.reduce_scatter_tensor(part, whole, group=group)
    assert collective == "alltoall", collective
    other = torch.zeros_like(whole)
    return lambda group: dist.all_to_all_single(other, whole, group=group)


MEASURED: tuple[Collective, ...] = ("allreduce", "allgather", "reduce_scatter", "alltoall")
"""Collectives that are measured; others are planned wherever a plan is given."""


def _microseconds(
    call: Callable[[dist.ProcessGroup], object],
    groups: Sequence[dist.ProcessGroup],
    size_bytes: int,
    device: torch.device,
) -> list[float]:
    """Of a call on each group; medians of samples that take turns."""
    count = 20 if size_bytes <= MIB else 8 if size_bytes <= 16 * MIB else 2
    samples: list[list[float]] = [[] for _ in groups]
    for turn in range(_SAMPLES + 1):
        for group, taken in zip(groups, samples, strict=True):
            call(group)  # the first of a group waits for the slowest rank
            _wait(device)
            start_s = time.perf_counter()
            for _ in range(count):
                call(group)
            _wait(device)
            if turn:
                taken.append((time.perf_counter() - start_s) * 1e6 / count)
    return [statistics.median(taken) for taken in samples]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _free_bytes(device: torch.device, group: dist.ProcessGroup) -> int:
    """Of the rank that has least."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 1 << 30
    said: list[Any] = [None] * group.size()
    dist.all_gather_object(said, free, group=group)
    return int(min(said))
