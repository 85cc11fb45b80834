"""Bytes that one worker holds while one operator runs, by what is chosen: the rows that a budget makes.

Where workers have different parts of the budget, bytes are those of the budget that a worker needs for what it holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from loadmaster.models.partition.choices import Choices
from loadmaster.models.partition.limits import over_time, whole_over_time
from loadmaster.models.partition.placements import Mesh, Worker
from loadmaster.models.partition.sides import buffer_bytes, copied_bytes, lives, sides
from loadmaster.solvers.program import FloatArray, IntArray


@dataclass(frozen=True)
class Moment:
    """Bytes that one worker holds while an operator runs.

    Attributes:
        shares: variable -> [states] of the tensors that live then.
        buffers: (tensors, operators) -> [states, states] of what the operator needs or makes otherwise than it is
            stored; (originals, copies) -> [states, states] of copies that live then and are placed otherwise.
    """

    operator: int
    worker: Worker
    shares: dict[int, FloatArray]
    buffers: dict[tuple[int, int], FloatArray]

    def bytes_of(self, chosen: Sequence[int]) -> float:
        """Bytes that an assignment takes."""
        found = sum(float(held[chosen[v]]) for v, held in self.shares.items())
        return found + sum(float(b[chosen[t], chosen[o]]) for (t, o), b in self.buffers.items())


def in_units(least: float, moments: Sequence[Moment]) -> int:
    """Least number of bytes, from ``least`` on, that any of some moments can take. Sizes are multiples of some unit,
    and so are their sums; parts of a budget may be of fractions of a byte."""
    unit = 0
    for moment in moments:
        for sizes in (*moment.shares.values(), *moment.buffers.values()):
            if (sizes != np.floor(sizes)).any():
                return math.ceil(least)
            unit = math.gcd(unit, int(np.gcd.reduce(sizes.astype(np.int64), axis=None)))
    return -(-math.ceil(least) // unit) * unit if unit else math.ceil(least)


class Memory:
    """The moments of a coarsened problem, on those ``workers`` that keep the budget only if all others do."""

    def __init__(self, choices: Choices) -> None:
        self.choices, self.problem = choices, choices.problem
        self.workers = Mesh(self.problem.axes).fullest
        self._lives = lives(self.problem)
        self._held: dict[tuple[int, Worker, tuple[int, ...], int], FloatArray] = {}

    def moments(self, n: int) -> list[Moment]:
        """Moments of each of the workers while operator n runs."""
        return [self._moment(n, worker) for worker in self.workers]

    def _moment(self, n: int, worker: Worker) -> Moment:
        shares: dict[int, FloatArray] = {}
        for t, (first, last) in enumerate(self._lives):
            if first <= n <= last and t not in self.problem.copied:
                v = self.choices.tensor_of[t]
                held = self._held_bytes(v, t, worker) / worker.memory_factor
                shares[v] = shares[v] + held if v in shares else held
        buffers = self._buffers(n, worker)
        for copy, original in self.problem.copied.items():
            pair = (self.choices.tensor_of[original], self.choices.tensor_of[copy])
            if self._lives[copy][0] <= n <= self._lives[copy][1] and pair[0] != pair[1]:
                held = self._copied(copy, *pair, worker) / worker.memory_factor
                buffers[pair] = buffers[pair] + held if pair in buffers else held
        return Moment(n, worker, shares, buffers)

    @cached_property
    def whole_bytes(self) -> IntArray:
        """Bytes of all tensors that live during each operator, undivided: [operators]."""
        return whole_over_time(self.problem)

    @cached_property
    def least_bytes(self) -> IntArray:
        """Least bytes of a worker during each operator, [operators]: every class of tensors as divided as it can be."""
        found = []
        for worker in self.workers:
            held = [
                0 if t in self.problem.copied else int(self._held_bytes(v, t, worker).min())
                for t, v in enumerate(self.choices.tensor_of)
            ]
            found.append(np.ceil(over_time(self.problem, held) / worker.memory_factor))
        least: IntArray = np.max(found, axis=0).astype(np.int64)
        return least

    def _held_bytes(self, v: int, tensor: int, worker: Worker) -> FloatArray:
        of = self.problem.tensors[tensor]
        key = (v, worker, of.shape, of.element_bytes)
        if key not in self._held:
            states = self.choices.variables[v].states
            held = [worker.held_elements(of.shape, p) * of.element_bytes for p in states]
            self._held[key] = np.array(held, dtype=float)
        return self._held[key]

    def _copied(self, copy: int, v_original: int, v_copy: int, worker: Worker) -> FloatArray:
        """Bytes of a copy on a worker, [states of the original, states of the copy]."""
        lie, copied = (self.choices.variables[v].states for v in (v_original, v_copy))
        return np.array([[copied_bytes(self.problem, copy, b, a, worker) for b in copied] for a in lie], dtype=float)

    def _buffers(self, n: int, worker: Worker) -> dict[tuple[int, int], FloatArray]:
        operator, v = self.problem.operators[n], self.choices.operator_of[n]
        if v is None:
            return {}
        every = self.problem.strategies(operator)
        found: dict[tuple[int, int], FloatArray] = {}
        by_state = [list(sides(operator, [every[s] for s in state])) for state in self.choices.variables[v].states]
        for needed in zip(*by_state, strict=True):
            t = self.choices.tensor_of[needed[0].tensor]
            placements = self.choices.variables[t].states
            rows = [[0 if side.placement == p and not side.halos else 1 for side in needed] for p in placements]
            sizes = np.array([buffer_bytes(self.problem, side, worker) for side in needed])
            buffer = np.array(rows) * sizes[None, :] / worker.memory_factor
            found[t, v] = found[t, v] + buffer if (t, v) in found else buffer
        return found
