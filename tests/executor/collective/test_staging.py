"""What ranks do, step by step, played in one process: any random schedule brings every collective about."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.executor.collective.engine import finish
from loadmaster.executor.collective.exchange import Sums, in_the_way, view
from loadmaster.executor.collective.staging import Piece, batches, merged, stage
from loadmaster.models.collective.lowering import lower
from tests.executor.collective.planned import planned
from tests.models.collective.tiny import ring, switched

BYTES = 4 * 12


def play(lowered, order, inputs):
    """Every rank's steps, each as soon as its messages are there; what is on the way is a copy of what was sent."""
    ranks = range(lowered.rank_count)
    staged = [stage(lowered, rank, order) for rank in ranks]
    memories = [
        {
            "input": inputs[rank].clone().view(torch.uint8),
            "output": torch.zeros(staged[rank].output_bytes, dtype=torch.uint8),
            "scratch": torch.zeros(staged[rank].scratch_bytes, dtype=torch.uint8),
        }
        for rank in ranks
    ]
    sums = [Sums(memory, torch.float32, dist.ReduceOp.SUM) for memory in memories]
    sent, place = {}, [0] * len(ranks)
    while True:
        for rank in ranks:
            if place[rank] < len(staged[rank].steps):
                for out in staged[rank].steps[place[rank]].outgoing:
                    data = torch.cat([view(memories[rank], piece) for piece in out.pieces])
                    assert data.numel() == out.size_bytes
                    assert torch.equal(sent.setdefault(out.message.index, data), data), "what is being sent has changed"
        able = [
            rank
            for rank in ranks
            if place[rank] < len(staged[rank].steps)
            and all(i.message.index in sent for i in staged[rank].steps[place[rank]].incoming)
        ]
        if not able:
            break
        for rank in able:
            step = staged[rank].steps[place[rank]]
            landed = []
            for incoming in step.incoming:
                landed.append(sent[incoming.message.index].clone())
                if incoming.direct is not None:
                    view(memories[rank], incoming.direct).copy_(landed[-1])
            sums[rank].add(step, landed)
            place[rank] += 1
    assert place == [len(one.steps) for one in staged], "ranks wait for one another"
    for rank in ranks:
        finish(staged[rank], memories[rank], sums[rank])
    return [memory["output"].view(torch.float32) for memory in memories]


def expected(collective, inputs, root):
    """What each rank must end with, plainly."""
    n = len(inputs)
    everything = torch.cat(inputs) if len({len(i) for i in inputs}) == 1 else None
    total = sum(inputs) if everything is not None else None
    nothing = torch.zeros(0)
    match collective:
        case "allgather":
            return [everything] * n
        case "allreduce":
            return [total] * n
        case "reduce_scatter":
            return list(total.view(n, -1))
        case "alltoall":
            return list(everything.view(n, n, -1).transpose(0, 1).reshape(n, -1))
        case "broadcast":
            return [inputs[root]] * n
        case "scatter":
            return list(inputs[root].view(n, -1))
        case "reduce":
            return [total if r == root else nothing for r in range(n)]
        case _:
            return [everything if r == root else nothing for r in range(n)]


COLLECTIVES = ("allgather", "allreduce", "reduce_scatter", "alltoall", "broadcast", "scatter", "reduce", "gather")


@settings(deadline=None, max_examples=120)
@given(
    collective=st.sampled_from(COLLECTIVES),
    topology=st.sampled_from([ring(2), ring(3), ring(4), switched(2, 2), switched(1, 5), switched(3, 2)]),
    chunk_count=st.integers(1, 3),
    order=st.sampled_from(["levels", "global"]),
    seed=st.integers(0, 10**6),
    data=st.data(),
)
def test_every_collective_comes_about(collective, topology, chunk_count, order, seed, data):
    n = topology.rank_count
    forms = ("direct", "gather") if collective in ("allreduce", "reduce_scatter", "reduce") else ("direct",)
    form = data.draw(st.sampled_from(forms))
    root = data.draw(st.integers(0, n - 1)) if collective in ("broadcast", "scatter", "reduce", "gather") else None
    more = {} if root is None else {"root": root}
    asked, plan = planned(topology, collective, BYTES * n, chunk_count=chunk_count, form=form, seed=seed, **more)
    lowered = lower(asked, plan.algorithms[0])
    inputs = [
        torch.randint(-9, 10, (size // 4,), generator=torch.Generator().manual_seed(seed + r)).float()
        for r, size in enumerate(lowered.buffers.input_bytes)
    ]
    found = play(lowered, order, inputs)
    for one, other in zip(found, expected(collective, inputs, root), strict=True):
        assert torch.equal(one, other)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 6), st.sampled_from(["levels", "global"]))
def test_batches_are_short_and_keep_what_waits_apart(seed, limit, order):
    asked, plan = planned(switched(2, 3), "allreduce", BYTES * 6, chunk_count=2, seed=seed)
    messages = lower(asked, plan.algorithms[0]).messages
    cut = batches(messages, order, limit)
    assert sorted(m.index for batch in cut for m in batch) == [m.index for m in messages]
    batch_of = {m.index: k for k, batch in enumerate(cut) for m in batch}
    for message in messages:
        assert all(batch_of[other] < batch_of[message.index] for other in message.waits_for)
    for batch in cut:
        assert all(sum(r in (m.source, m.target) for m in batch) <= limit for r in range(6))


def test_neighbours_in_memory_are_one_piece():
    pieces = [Piece("output", 0, 4), Piece("output", 4, 4), Piece("scratch", 8, 4), Piece("scratch", 0, 4)]
    assert merged(pieces) == (Piece("output", 0, 8), Piece("scratch", 8, 4), Piece("scratch", 0, 4))


@pytest.mark.parametrize(
    ("collective", "shift", "spoils"),
    [
        ("allgather", 1, False),  # The input is this rank's piece of the output.
        ("allgather", 2, True),
        ("alltoall", 0, True),
    ],
)
def test_output_over_input_is_noticed(collective, shift, spoils):
    """Rank 1 of 4, on one piece of memory in which the input begins ``shift`` pieces after the output."""
    asked, plan = planned(ring(4), collective, 64)
    one = stage(lower(asked, plan.algorithms[0]), 1)
    memory = torch.zeros(256, dtype=torch.uint8)
    begin = shift * 16
    buffers = {"output": memory[: one.output_bytes], "input": memory[begin : begin + one.input_bytes]}
    assert in_the_way(one, buffers) == spoils
