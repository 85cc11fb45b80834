"""Random training graphs, tiny and consistent: what the tests of the ``memory`` kind are run on."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loadmaster.models.hardware import HostLink
from loadmaster.models.memory.problem import (
    BackwardImplementation,
    BackwardOperator,
    ForwardOperator,
    Implementation,
    InPlace,
    MemoryProblem,
    Objective,
)
from tests.models.memory.brute_force import best_objectives

UNIT = 1 << 20


def seeds(fast: Iterable[int], slow: Iterable[int]) -> list[Any]:
    """Parameters of a test on random instances: those of the fast core, and more that are marked slow."""
    return [*fast, *(pytest.param(seed, marks=pytest.mark.slow) for seed in slow)]


def random_problem(
    seed: int,
    *,
    operators: int = 4,
    skips: float = 0.3,
    in_place: float = 0.4,
    encodings: float = 0.3,
    choices: int = 2,
    once_only: float = 0.0,
    roomy_in_place: float = 0.0,
    objective: Objective = "time",
    host_link: HostLink | None = None,
    unit_bytes: int = 1,
) -> MemoryProblem:
    """A graph of ``operators`` forward operators (the last is the loss) and as many backward ones.

    Args:
        skips, in_place, encodings, once_only: how likely an operator reads an earlier result too, may run in place,
            has an encoded result (one more forward operator), must not be recomputed.
        choices: most implementations an operator has.
        roomy_in_place: how likely running in place takes workspace instead of saving it.
        objective: with "energy" every implementation has an energy, unrelated to its time.
        unit_bytes: sizes are 1..9 of these.
    """
    chances = (skips, in_place, encodings, once_only, roomy_in_place)
    return _Generator(seed, operators, chances, choices, unit_bytes).problem(objective, host_link)


def scattered(problem: MemoryProblem, seed: int, *, unit_bytes: int, unit_us: float, decades: float) -> MemoryProblem:
    """The same graph with sizes and times as they are measured: odd to the last byte, and far apart.

    Args:
        unit_bytes: a result of n bytes has n times so many now, and up to once more.
        unit_us, decades: a time of n has n times so much, up to so many powers of ten more or less.
    """
    random = np.random.default_rng(seed)
    sizes = [_odd(random, int(size), unit_bytes) for size in problem.output_bytes]

    def way(c: Any) -> Any:
        time_us = c.time_us * unit_us * 10.0 ** random.uniform(-decades, decades)
        return replace(c, time_us=time_us, workspace_bytes=_odd(random, c.workspace_bytes, unit_bytes))

    def ways(choices: Iterable[Any]) -> tuple[Any, ...]:
        return tuple(way(c) for c in choices)

    forward = []
    for f in problem.forward:
        in_place = f.in_place
        if in_place is not None:
            delta = in_place.workspace_delta_bytes * unit_bytes
            saves = f.encodes is None and delta < 0
            delta = -sizes[in_place.overwrites] if saves else delta
            in_place = replace(in_place, time_delta_us=0.0, workspace_delta_bytes=delta)
        forward.append(
            replace(
                f,
                output_bytes=sizes[f.id],
                live_bytes=sum(sizes[i] for i in f.live_inputs),
                fixed_bytes=f.fixed_bytes * unit_bytes,
                implementations=ways(f.implementations),
                recompute_implementations=ways(f.recompute_implementations),
                in_place=in_place,
            )
        )
    backward = tuple(
        replace(
            b,
            output_bytes=_odd(random, b.output_bytes, unit_bytes),
            live_bytes=_odd(random, b.live_bytes, unit_bytes),
            fixed_bytes=b.fixed_bytes * unit_bytes,
            implementations=ways(b.implementations),
        )
        for b in problem.backward
    )
    return replace(problem, forward=tuple(forward), backward=backward)


def _odd(random: np.random.Generator, size: int, unit_bytes: int) -> int:
    return size * unit_bytes + (int(random.integers(unit_bytes)) if size > 0 else 0)


def with_encoded_of_encoded(seed: int) -> MemoryProblem:
    """A chain in which one operator has two encoded results, the second of which is made from the first. In some, the
    operator after them reads the first."""
    random = np.random.default_rng(seed)
    count = int(random.integers(2, 4))
    encoded, reads = int(random.integers(count - 1)), bool(random.integers(2))
    forward: list[ForwardOperator] = []
    main: list[int] = []

    def add(op: str, inputs: Iterable[int], most: int, encodes: int | None = None) -> int:
        ways = [(Implementation(float(random.integers(1, 9)), int(random.integers(3))),) for _ in range(2)]
        size = int(random.integers(1, most))
        forward.append(ForwardOperator(len(forward), op, tuple(inputs), size, (), 0, 0, *ways, encodes=encodes))
        return len(forward) - 1

    first = second = -1
    for n in range(count):
        main.append(add(f"op{n}", [*main[-1:], *([first] if reads and n == encoded + 1 else [])], 9))
        if n == encoded:
            first = add("first", [main[-1]], 4, main[-1])
            second = add("second", [first], 3, main[-1])
    complete = _with_live_sets(forward)
    backward = []
    for k, i in enumerate(reversed(main), start=1):
        needs = [(second,), (i,), complete[i].inputs, (first,), ()][0 if i == main[encoded] else random.integers(5)]
        way = BackwardImplementation(float(random.integers(1, 9)), 0, tuple(needs))
        backward.append(BackwardOperator(k, "b", int(random.integers(1, 5)), int(random.integers(3)), 0, (way,)))
    return MemoryProblem(f"encoded of encoded {seed}", complete, tuple(backward))


def budgets(problem: MemoryProblem, fractions: tuple[float, ...]) -> list[int]:
    """Budgets between the largest single operator and everything at once."""
    least = max(
        [f.fixed_bytes + f.output_bytes + f.live_bytes for f in problem.forward]
        + [b.fixed_bytes + b.output_bytes + b.live_bytes for b in problem.backward]
    )
    most = max(b.fixed_bytes + b.live_bytes + b.output_bytes for b in problem.backward) + int(
        problem.output_bytes.sum()
    )
    return [int(least + fraction * max(most - least, 1)) for fraction in fractions]


@functools.cache
def tight_cases(seed: int) -> tuple[MemoryProblem, tuple[tuple[int, float], ...]]:
    """A tiny graph and its frontier: budgets at which the optimum falls, those one unit short of them, each optimum.

    Long skips, encoded results, in-place operators that save or take workspace, results that must not be recomputed;
    in every other graph the gradients are small, so that what is kept decides.
    """
    operators = 4 + seed % 2
    generator = functools.partial(
        random_problem,
        seed,
        operators=operators,
        skips=0.5,
        in_place=0.7,
        once_only=0.1,
        roomy_in_place=0.3,
        choices=2 if seed % 4 == 0 else 1,
        objective="energy" if seed % 3 == 1 else "time",
        unit_bytes=UNIT,
    )
    problem = generator(encodings=0.6 if operators == 4 else 0.1)
    if len(problem.forward) > (6 if seed % 4 == 0 else 7):  # too many schedules to try them all
        problem = generator(encodings=0.0)
    if seed % 4 < 2:
        light = [replace(b, output_bytes=b.output_bytes // 4, live_bytes=b.live_bytes // 4) for b in problem.backward]
        problem = replace(problem, backward=tuple(light))
    least, most = budgets(problem, (0.0, 1.0))
    every = range(max(0, least - 10 * UNIT), most + 10 * UNIT, UNIT)
    best = best_objectives(problem, every)
    falls = [n for n in range(1, len(best)) if best[n] < best[n - 1]]
    return problem, tuple((every[n], best[n]) for n in sorted({*falls, *(n - 1 for n in falls)}))


def loops(layers: int, positions: int) -> MemoryProblem:
    """Layers with a loop inside, as Mamba's: each makes one wide result, and reads a slice of it at each position."""
    forward: list[ForwardOperator] = []

    def add(op: str, inputs: tuple[int, ...], units: int, time_us: float = 1.0) -> int:
        ways = (Implementation(time_us, 0),)
        forward.append(ForwardOperator(len(forward), op, inputs, units * UNIT, (), 0, 0, ways, ways))
        return len(forward) - 1

    x = add("embedding", (), 1)
    for _ in range(layers):
        wide = add("wide", (x,), positions, 4.0)
        states = []
        for _ in range(positions):
            states.append(add("state", (wide, *states[-1:]), 1))
        x = add("stack", tuple(states), 1)
    add("loss", (x,), 1)
    backward = tuple(
        BackwardOperator(k, f"{f.op} backward", UNIT, UNIT, 0, (BackwardImplementation(2.0, 0, f.inputs),))
        for k, f in enumerate(reversed(forward), start=1)
    )
    return MemoryProblem("loops", _with_live_sets(forward), backward)


class _Generator:
    def __init__(self, seed: int, operators: int, chances: tuple[float, ...], choices: int, unit_bytes: int) -> None:
        self.random = np.random.default_rng(seed)
        self.seed = seed
        self.operators = operators
        (
            self.chance_of_skip,
            self.chance_of_in_place,
            self.chance_of_encoding,
            self.chance_of_once,
            self.chance_of_room,
        ) = chances
        self.choices = choices
        self.unit_bytes = unit_bytes
        self.parameters = self._bytes(0, 4)

    def _chance(self, probability: float) -> bool:
        return bool(self.random.random() < probability)

    def _bytes(self, low: int, high: int) -> int:
        return int(self.random.integers(low, high + 1)) * self.unit_bytes

    def _cost(self, low: int, high: int) -> float:
        return float(self.random.integers(low, high + 1))

    def problem(self, objective: Objective, host_link: HostLink | None) -> MemoryProblem:
        plain, encoded = self._forward()
        forward = _with_live_sets(plain)
        return MemoryProblem(
            name=f"random-{self.seed}",
            forward=forward,
            backward=self._backward(forward, encoded),
            objective=objective,
            host_link=host_link,
        )

    def _implementations(self) -> tuple[Implementation, ...]:
        count = int(self.random.integers(1, self.choices + 1))
        return tuple(
            Implementation(time_us=self._cost(2, 9), workspace_bytes=self._bytes(0, 3), energy_uj=self._cost(2, 9))
            for _ in range(count)
        )

    def _forward(self) -> tuple[list[ForwardOperator], dict[int, int]]:
        """Forward operators without their live sets, and the encoded result of those that have one."""
        made: list[ForwardOperator] = []
        main: list[int] = []
        encoded: dict[int, int] = {}
        for position in range(self.operators):
            last = position == self.operators - 1
            inputs = main[-1:]
            if len(main) > 1 and self._chance(self.chance_of_skip):
                inputs = sorted({*inputs, int(self.random.choice(main[:-1]))})
            operator = ForwardOperator(
                id=len(made),
                op="loss" if last else f"op{position}",
                inputs=tuple(inputs),
                output_bytes=self._bytes(1, 2) if last else self._bytes(1, 9),
                live_inputs=(),
                live_bytes=0,
                fixed_bytes=self.parameters,
                implementations=self._implementations(),
                recompute_implementations=self._implementations(),
                recomputable=not self._chance(self.chance_of_once),
            )
            if main and not last and self._chance(self.chance_of_in_place):
                operator = replace(operator, in_place=self._in_place(main[-1], made[main[-1]].output_bytes))
            made.append(operator)
            main.append(operator.id)
            if not last and self._chance(self.chance_of_encoding):
                encoded[operator.id] = len(made)
                made.append(self._encoding(len(made), operator))
        return made, encoded

    def _in_place(self, overwrites: int, output_bytes: int) -> InPlace:
        # The draw is left out where it decides nothing: the other tests' graphs stay what they are.
        roomy = self.chance_of_room > 0 and self._chance(self.chance_of_room)
        return InPlace(
            overwrites=overwrites,
            time_delta_us=self._cost(-2, 1),
            workspace_delta_bytes=self._bytes(1, 4) if roomy else -output_bytes,
            energy_delta_uj=self._cost(-2, 1),
        )

    def _encoding(self, id_: int, parent: ForwardOperator) -> ForwardOperator:
        in_place = None
        if parent.in_place is not None and self._chance(0.5):
            in_place = replace(
                parent.in_place,
                time_delta_us=self._cost(-1, 2),
                workspace_delta_bytes=-self._bytes(0, 1),
                energy_delta_uj=self._cost(-1, 2),
            )
        # Signs can be taken from what the parent reads just as well as from what it writes.
        inputs = parent.inputs if parent.inputs and self._chance(0.2) else (parent.id,)
        return ForwardOperator(
            id=id_,
            op=f"encoded {parent.op}",
            inputs=inputs,
            output_bytes=self._bytes(1, 2),
            live_inputs=(),
            live_bytes=0,
            fixed_bytes=self.parameters,
            implementations=self._implementations(),
            recompute_implementations=self._implementations(),
            encodes=parent.id,
            in_place=in_place,
            recomputable=parent.recomputable,
        )

    def _backward(self, forward: tuple[ForwardOperator, ...], encoded: dict[int, int]) -> tuple[BackwardOperator, ...]:
        made: list[BackwardOperator] = []
        last_reader = [max([f.id, *(g.id for g in forward if f.id in g.inputs)]) for f in forward]
        for f in reversed([f for f in forward if f.encodes is None]):
            ways: list[tuple[int, ...]] = [f.inputs, (f.id,), (), tuple(sorted({*f.inputs, f.id}))]
            if f.id in encoded:
                ways = [(encoded[f.id],), (encoded[f.id],), *ways]
            count = int(self.random.integers(1, self.choices + 1))
            live = [g for g in forward if g.encodes is None and g.id <= f.id < last_reader[g.id]]
            made.append(
                BackwardOperator(
                    id=len(made) + 1,
                    op=f"{f.op} backward",
                    output_bytes=sum(forward[i].output_bytes for i in f.inputs),
                    live_bytes=sum(g.output_bytes for g in live),
                    fixed_bytes=self.parameters + self.unit_bytes * (len(made) // 2),
                    implementations=tuple(
                        BackwardImplementation(
                            time_us=self._cost(3, 12),
                            workspace_bytes=self._bytes(0, 3),
                            needs=ways[int(self.random.integers(len(ways)))],
                            energy_uj=self._cost(3, 12),
                        )
                        for _ in range(count)
                    ),
                )
            )
        return tuple(made)


def _with_live_sets(forward: list[ForwardOperator]) -> tuple[ForwardOperator, ...]:
    """L_j: earlier results that j or a later operator still reads."""
    complete: list[ForwardOperator] = []
    for f in forward:
        live = tuple(i for i in range(f.id) if any(i in g.inputs for g in forward[f.id :]))
        complete.append(replace(f, live_inputs=live, live_bytes=sum(forward[i].output_bytes for i in live)))
    return tuple(complete)
