"""Lowered messages run with numbers, in any order that executors allow: is the data right, and does it always end?

The checker judges a schedule by its times; executors keep none of them. They promise two things only: a message leaves
after the messages that it waits for have arrived, and between two ranks messages leave and arrive in the global order.
Here a message leaves, and arrives, at any moment that these rules allow, by chance. What it carries is read when it
leaves and again when it arrives: a value that changes in between is a race.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.lowering import Message, messages_of
from loadmaster.models.collective.plan import Send

# Sums of numbers this large are equal by accident only.
_LARGEST = 1 << 48


def replay(instance: Instance, sends: Sequence[Send], seeds: Iterable[int] = range(5)) -> tuple[str, ...]:
    """Run a schedule's messages once per seed; what went wrong, in words, of the first seed where anything did."""
    return replay_messages(instance, messages_of(tuple(sends)), seeds)


def replay_messages(
    instance: Instance, messages: Sequence[Message], seeds: Iterable[int] = range(5)
) -> tuple[str, ...]:
    """The same for messages that are lowered already; message i has index i."""
    for seed in seeds:
        violations = _Run(instance, messages, seed).run()
        if violations:
            return tuple(f"seed {seed}: {text}" for text in violations)
    return ()


class _Run:
    """One interleaving: the values on each rank, the messages on their way, and those that may go on."""

    def __init__(self, instance: Instance, messages: Sequence[Message], seed: int) -> None:
        self.instance, self.messages = instance, messages
        self.random = random.Random(seed)
        self.violations: list[str] = []
        self.values: dict[tuple[int, int], int] = {}
        self.wanted: list[int] = []
        for index, chunk in enumerate(instance.chunks):
            parts = [self.random.randrange(1, _LARGEST) for _ in chunk.sources if chunk.reduces]
            parts = parts or [self.random.randrange(1, _LARGEST)] * len(chunk.sources)
            self.values.update({(index, rank): part for rank, part in zip(chunk.sources, parts, strict=True)})
            self.wanted.append(sum(parts) if chunk.reduces else parts[0])
        self.waits = [len(message.waits_for) for message in messages]
        self.waiters: list[list[int]] = [[] for _ in messages]
        self.queues: dict[tuple[int, int], list[int]] = {}
        for message in messages:
            for needed in message.waits_for:
                self.waiters[needed].append(message.index)
            self.queues.setdefault((message.source, message.target), []).append(message.index)
        # Per pair of ranks: how many of its messages have left, and how many have arrived.
        self.left = dict.fromkeys(self.queues, 0)
        self.arrived = dict.fromkeys(self.queues, 0)
        self.carried: dict[int, list[int | None]] = {}

    def run(self) -> list[str]:
        """Until nothing can go on."""
        possible = [step for pair in self.queues for step in self._steps(pair)]
        while possible:
            place = self.random.randrange(len(possible))
            possible[place], possible[-1] = possible[-1], possible[place]
            index, leaves = possible.pop()
            message = self.messages[index]
            pair = message.source, message.target
            if leaves:
                self.carried[index] = self._read(message)
                self.left[pair] += 1
                possible += [step for step in self._steps(pair) if step[1]]
                if self.arrived[pair] == self.left[pair] - 1:
                    possible.append((index, False))
            else:
                self._arrive(message)
                self.arrived[pair] += 1
                possible += [step for step in self._steps(pair) if not step[1]]
                for waiter in self.waiters[index]:
                    self.waits[waiter] -= 1
                    if not self.waits[waiter]:
                        freed = self.messages[waiter]
                        steps = self._steps((freed.source, freed.target))
                        possible += [step for step in steps if step == (waiter, True)]
        stuck = [index for pair, queue in self.queues.items() for index in queue[self.arrived[pair] :]]
        if stuck:
            first = self.messages[min(stuck)]
            self.violations.append(
                f"{len(stuck)} messages never arrive, first the one from rank {first.source} to {first.target}"
            )
        self._compare()
        return self.violations

    def _steps(self, pair: tuple[int, int]) -> list[tuple[int, bool]]:
        """What may happen next between two ranks: (message, whether it leaves)."""
        queue, left, arrived = self.queues[pair], self.left[pair], self.arrived[pair]
        steps = []
        if left < len(queue) and not self.waits[queue[left]]:
            steps.append((queue[left], True))
        if arrived < left:
            steps.append((queue[arrived], False))
        return steps

    def _read(self, message: Message) -> list[int | None]:
        return [self.values.get((chunk, message.source)) for chunk in message.chunks]

    def _arrive(self, message: Message) -> None:
        where = f"the message from rank {message.source} to {message.target}"
        for chunk, left, now in zip(message.chunks, self.carried.pop(message.index), self._read(message), strict=True):
            here = chunk, message.target
            if left is None:
                # A chunk of no bytes has no value to miss.
                if self.instance.chunks[chunk].size_bytes:
                    self.violations.append(f"{where} carries chunk {chunk}, which its source does not hold")
            elif left != now:
                self.violations.append(f"{where} carries chunk {chunk}, which changes on its source meanwhile")
            elif message.combines:
                self.values[here] = self.values.get(here, 0) + left
            else:
                self.values[here] = left

    def _compare(self) -> None:
        for index, chunk in enumerate(self.instance.chunks):
            for rank in chunk.targets:
                if chunk.size_bytes and self.values.get((index, rank)) != self.wanted[index]:
                    self.violations.append(f"rank {rank} ends with a wrong chunk {index}")
