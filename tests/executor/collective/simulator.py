"""A CPU that runs instruction tables word by word: ranks, streams and lanes as coroutines in a random order.

It shares nothing with the kernel but the words. Memory that nothing wrote is not a number; a machine on which no
coroutine can go on has a deadlock.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from loadmaster.executor.collective.fused.table import Table

VECTOR = 16
MASK = (1 << 48) - 1


class DeadlockError(AssertionError):
    """No coroutine can go on."""


@dataclass
class Call:
    """One collective: its table and every rank's buffers, as bytes. ``outputs`` may be ``inputs``."""

    table: Table
    inputs: list[np.ndarray]
    outputs: list[np.ndarray]


class Machine:
    """Ranks with an arena each, as the kernel sees them."""

    def __init__(self, rank_count: int, seed: int, capacity: int = 1 << 16, flags: int = 1 << 14) -> None:
        self.ranks = range(rank_count)
        self.random = random.Random(seed)
        self.simple = np.full((rank_count, 2, capacity), 0xFF, dtype=np.uint8)
        self.packed = np.zeros((rank_count, 2, capacity // 16, 4), dtype=np.uint32)
        self.flags = np.zeros((rank_count, 2, flags), dtype=np.int64)

    def run(self, calls: Sequence[Call], stalled: int | None = None) -> None:
        """Every rank makes all calls, as far ahead of others as its tables let it; one rank may never begin."""
        at = [0] * len(self.ranks)
        epoch = [0] * len(self.ranks)
        running = {rank: self._begin(calls[0], rank, 0, 0) for rank in self.ranks if rank != stalled}
        idle = 0
        while any(running.values()):
            rank = self.random.choice([r for r, of_rank in running.items() if of_rank])
            routines = running[rank]
            routine = self.random.choice(routines)
            # A burst: mostly the random order is uneven.
            for _ in range(self.random.choice((1, 1, 3, 50))):
                moved = next(routine, None)
                idle = idle + 1 if moved is False else 0
                if moved is None:
                    routines.remove(routine)
                    break
                if not moved:
                    break
            if idle > 3000 + 200 * sum(len(of_rank) for of_rank in running.values()):
                raise DeadlockError
            if not routines and at[rank] + 1 < len(calls):
                epoch[rank] += calls[at[rank]].table.rounds
                at[rank] += 1
                running[rank] = self._begin(calls[at[rank]], rank, epoch[rank], at[rank] % 2)

    def _begin(self, call: Call, rank: int, epoch: int, parity: int) -> list[Iterator[bool]]:
        streams, lanes = range(len(call.table.begins[rank]) - 1), range(call.table.lanes)
        return [self._block(call, rank, stream, lane, epoch, parity) for stream in streams for lane in lanes]

    def _block(self, call: Call, rank: int, stream: int, lane: int, epoch: int, parity: int) -> Iterator[bool]:
        """One block: yields True after every step, False where it has to wait."""
        table = call.table
        words, (begin, end) = table.words[rank], table.begins[rank][stream : stream + 2]
        # No table lags by more than two rounds.
        for level in range(table.rounds + 2):
            at = begin
            while at < end:
                size, counts = int(words[at]), int(words[at + 1])
                operands = iter(int(w) for w in words[at + 2 :])
                lists = [[next(operands) for _ in range(counts >> (8 * k) & 255)] for k in range(4)]
                when, turn = counts >> 32 & 3, level - (counts >> 34)
                at += 2 + sum(len(one) for one in lists)
                if not 0 <= turn < table.rounds:
                    continue
                if when and (lane or turn != (0 if when == 1 else table.rounds - 1)):
                    continue
                number = epoch + 1 + (0 if when else turn)
                for flag in lists[2]:
                    while self.flags[rank, parity, flag + lane] < number:
                        yield False
                    yield True
                move = self._packed if table.protocol == "packed" else self._simple
                yield from move(call, rank, parity, (lane, turn), size, lists[0], lists[1], epoch + 1)
                for signal in lists[3]:
                    target, flag = signal >> 32, signal & 0xFFFFFFFF
                    self.flags[target, parity, flag + lane] = number
                    yield True

    @staticmethod
    def _slice(table: Table, units: int, part: tuple[int, int]) -> range:
        """Of a lane, a whole; of its rounds, all but the first and last of one length, and these of that together."""
        lane, turn = part
        mine = -(-units // (8 * table.lanes))
        bounds = [0, mine]
        if table.rounds > 1:
            piece = -(-mine // (table.rounds - 1))
            inner = [k * piece - piece * lane // table.lanes for k in range(1, table.rounds)]
            bounds = [0, *(min(mine, bound) for bound in inner), mine]
        return range(*(min(units, 8 * (lane * mine + bound)) for bound in bounds[turn : turn + 2]))

    def _simple(self, call, rank, parity, part, size, sources, targets, number) -> Iterator[bool]:  # type: ignore[no-untyped-def]
        for unit in self._slice(call.table, -(-size // VECTOR), part):
            begin, end = unit * VECTOR, min(size, (unit + 1) * VECTOR)
            read = [self._memory(call, place, parity)[begin:end] for place in sources]
            value = _sum([one.copy() for one in read])
            for place in targets:
                self._memory(call, place, parity)[begin:end] = value
            yield True

    def _packed(self, call, rank, parity, part, size, sources, targets, number) -> Iterator[bool]:  # type: ignore[no-untyped-def]
        mark = (number & 0x7FFFFFFF) | 0x80000000
        for unit in self._slice(call.table, -(-size // 8), part):
            begin, end = unit * 8, min(size, (unit + 1) * 8)
            read = []
            for place in sources:
                if place >> 56 == 2:
                    cell = self.packed[rank, parity, (place & MASK) // 16 + unit]
                    while cell[1] != mark or cell[3] != mark:
                        yield False
                    read.append(cell[[0, 2]].copy().view(np.uint8)[: end - begin])
                else:
                    read.append(self._memory(call, place, parity)[begin:end].copy())
            value = _sum(read)
            for place in targets:
                if place >> 56 == 2:
                    data = np.zeros(8, dtype=np.uint8)
                    data[: end - begin] = value
                    low, high = data.view(np.uint32)
                    self.packed[place >> 48 & 255, parity, (place & MASK) // 16 + unit] = (low, mark, high, mark)
                else:
                    self._memory(call, place, parity)[begin:end] = value
                yield True
            yield True

    def _memory(self, call: Call, place: int, parity: int) -> np.ndarray:
        kind, rank, offset = place >> 56, place >> 48 & 255, place & MASK
        if kind == 2:
            return self.simple[rank, parity, offset:]
        return (call.inputs, call.outputs)[kind][rank][offset:]


def _sum(read: list[np.ndarray]) -> np.ndarray:
    """Of floats, in the order given; one operand is copied as it is."""
    if len(read) == 1:
        return read[0]
    total = read[0].view(np.float32).copy()
    for one in read[1:]:
        total = total + one.view(np.float32)
    return total.view(np.uint8)
