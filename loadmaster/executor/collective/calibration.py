"""Calibration of planned calls against the inner group's: measured through the same calls, when plans are switched on.

Sizes are powers of two; both groups take turns, and the slowest rank counts. On a GPU calls are timed alone and next to
matrix products on another stream, as training has them: what is fast alone may take the multiprocessors of others. A
plan wins a size where it is clearly faster alone, and not slower next to them. A size between two measured ones is
planned where both are won.
"""

from __future__ import annotations

import bisect
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
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
# Times vary by as much from run to run: alone, and next to computation.
_CLEARLY, _LEVEL = 0.97, 1.01


@dataclass(frozen=True)
class Timing:
    """One size of one collective: microseconds a call takes by plan, and in the inner group. The ``beside`` times are
    of a call and the computation next to it, until both are over; zero where there was none."""

    collective: Collective
    size_bytes: int
    planned_us: float
    inner_us: float
    planned_beside_us: float = 0.0
    inner_beside_us: float = 0.0

    @property
    def won(self) -> bool:
        return self.planned_us <= self.inner_us * _CLEARLY and self.planned_beside_us <= self.inner_beside_us * _LEVEL


@dataclass(frozen=True)
class Calibration:
    """Times of planned calls and of the inner group's, by collective and size. ``print`` shows a table. ``device`` is
    the name of the GPU, or "cpu"; ``plans``, what was planned, as ranks agreed on it."""

    device: str
    ranks: int
    plans: tuple[str, ...]
    timings: tuple[Timing, ...]

    def wins(self, collective: Collective, size_bytes: int) -> bool:
        """Return whether a call of that size is to be planned. Calls of a collective that was not measured are."""
        measured = [t for t in self.timings if t.collective == collective]
        if not measured:
            return True
        at = bisect.bisect_left([t.size_bytes for t in measured], size_bytes)
        if at < len(measured) and measured[at].size_bytes == size_bytes:
            return measured[at].won
        return all(t.won for t in measured[max(0, at - 1) : at + 1])

    def save(self, path: str | Path) -> None:
        """Write the calibration to a file, to be given to ``use(..., calibrate=path)``."""
        Path(path).write_text(json.dumps(asdict(self), indent=1) + "\n", "utf-8")

    @staticmethod
    def load(path: str | Path) -> Calibration:
        """Read what :meth:`save` wrote. Raises InputError: no such file, or another content."""
        try:
            read = json.loads(Path(path).read_text("utf-8"))
            timings = tuple(Timing(**timing) for timing in read["timings"])
            return Calibration(str(read["device"]), int(read["ranks"]), tuple(read["plans"]), timings)
        except (OSError, ValueError, TypeError, KeyError) as error:
            remedy = "Measure: calibrate=True."
            raise InputError("calibrate", str(path), f"is no calibration: {error}", remedy) from error

    def __str__(self) -> str:
        lines = [
            f"{self.ranks} ranks of {self.device}; us a call, and beside matrix products",
            "collective              bytes  planned   inner     planned   inner  runs",
        ]
        for t in self.timings:
            alone, beside = (t.planned_us, t.inner_us), (t.planned_beside_us, t.inner_beside_us)
            figures = "    ".join(f"{ours:>8.1f}{theirs:>8.1f}" for ours, theirs in (alone, beside))
            lines.append(f"{t.collective:14} {t.size_bytes:>14,} {figures}  {'planned' if t.won else 'inner'}")
        return "\n".join(lines)


def device_name(device: torch.device) -> str:
    """Name of a device in a :class:`Calibration`: that of the GPU, or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def expect_fitting(calibration: Calibration, device: torch.device, ranks: int, plans: Sequence[str]) -> None:
    """Refuse a calibration of another GPU, number of ranks, or other plans (InputError)."""
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
    """Time planned calls against the inner group's. Every rank of the group calls it. ``planned`` has no calibration
    yet. ``collectives`` are those that are planned and take no root, with the fewest bytes that they are planned from;
    above ``largest_bytes`` nothing is planned."""
    free_bytes: list[Any] = [None] * inner.size()
    dist.all_gather_object(
        free_bytes, torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 1 << 30, group=inner
    )
    most_bytes = min(_LARGEST_BYTES, largest_bytes or _LARGEST_BYTES, min(free_bytes) // _SHARE)
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
        Timing(collective, size, *(max(of_rank[row][way] for of_rank in said) for way in range(len(said[0][row]))))
        for row, (collective, size, _) in enumerate(found)
    )
    return Calibration(device_name(device), inner.size(), tuple(plans), timings)


def call_of(
    collective: Collective, size_bytes: int, device: torch.device, ranks: int
) -> Callable[[dist.ProcessGroup], object]:
    """Make a call of ``torch.distributed``, of so many bytes in the largest buffer of a rank, to run on a group."""
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
    """Time a call on each group, and on a GPU also next to matrix products; microseconds a call."""
    count = 20 if size_bytes <= MIB else 8 if size_bytes <= 16 * MIB else 2
    alone = _medians([partial(_repeat, call, group, count) for group in groups], device)
    found = [us / count for us in alone]
    if device.type == "cuda":
        beside = _Beside(device, max(alone))
        both = _medians([partial(beside.run, call, group, count) for group in groups], device)
        found += [us / count for us in both]
    return found


def _repeat(call: Callable[[dist.ProcessGroup], object], group: dist.ProcessGroup, count: int) -> None:
    for _ in range(count):
        call(group)


class _Beside:
    """Matrix products on the current stream that take about as long as some calls on another."""

    def __init__(self, device: torch.device, calls_us: float) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._matrix = torch.zeros(2048, 2048, dtype=torch.bfloat16, device=device)
        self._count = 1
        (one_us,) = _medians([self._compute], device)
        self._count = math.ceil(calls_us / one_us) + 1

    def _compute(self) -> None:
        for _ in range(self._count):
            torch.mm(self._matrix, self._matrix)

    def run(self, call: Callable[[dist.ProcessGroup], object], group: dist.ProcessGroup, count: int) -> None:
        """Begin the products, then the calls on the other stream."""
        self._stream.wait_stream(torch.cuda.current_stream())
        self._compute()
        with torch.cuda.stream(self._stream):
            _repeat(call, group, count)
        torch.cuda.current_stream().wait_stream(self._stream)


def _medians(ways: Sequence[Callable[[], object]], device: torch.device) -> list[float]:
    """Measure the median time of each way, microseconds, in samples that take turns."""
    samples: list[list[float]] = [[] for _ in ways]
    for turn in range(_SAMPLES + 2):
        for way, taken in zip(ways, samples, strict=True):
            _wait(device)
            start_s = time.perf_counter()
            way()
            _wait(device)
            if turn > 1:
                taken.append((time.perf_counter() - start_s) * 1e6)
    return [statistics.median(taken) for taken in samples]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
