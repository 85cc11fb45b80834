"""Scenarios of the reference executor: against ``torch.distributed``'s results; what it refuses; a peer that dies."""

from __future__ import annotations

import os
import time

import pytest
import torch
import torch.distributed as dist

from loadmaster.errors import InputError
from loadmaster.executor.collective.agreement import Place
from loadmaster.executor.collective.engine import Runner
from loadmaster.executor.collective.faults import PeerError
from tests.executor.collective.planned import planned, topology_of

AVG, MAX, SUM = dist.ReduceOp.AVG, dist.ReduceOp.MAX, dist.ReduceOp.SUM


def numbers(rank, count, dtype=torch.float32, seed=0):
    """Small whole numbers: every order of adding them up gives the same sum, in any type."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randint(-8, 9, (count,), generator=generator).to(dtype)


def place(rank):
    """On eight ranks the plan is for two nodes: the test says that this host is two."""
    return Place(f"host {rank // 4}" if dist.get_world_size() == 8 else "host", rank % 4)


def runner(rank, collective, size_bytes, **options):
    mine = {key: options.pop(key) for key in ("order", "timeout_s", "watch") if key in options}
    asked = planned(topology_of(dist.get_world_size()), collective, size_bytes, **options)
    return Runner(*asked, place=place(rank), **mine)


def gathers(rank):
    n = dist.get_world_size()
    for order, chunks, dtype in (
        ("levels", 1, torch.float32),
        ("global", 2, torch.bfloat16),
        ("levels", 3, torch.int8),
    ):
        run = runner(rank, "allgather", 96 * n, chunk_count=chunks, seed=chunks, order=order)
        for scale in (1, 5):
            mine = numbers(rank, scale * 96 // dtype.itemsize, dtype)
            found, expected = (torch.zeros(n * len(mine), dtype=dtype) for _ in range(2))
            run.all_gather(found, mine)
            dist.all_gather_into_tensor(expected, mine)
            assert torch.equal(found, expected)
            # In place: the input is this rank's piece of the output.
            found.zero_()
            piece = found.view(n, -1)[rank]
            piece.copy_(mine)
            run.all_gather(found, piece)
            assert torch.equal(found, expected)
    assert run.calls == 4


def sums(rank):
    n = dist.get_world_size()
    for form, order, chunks in (("direct", "levels", 1), ("direct", "global", 2), ("gather", "levels", 1)):
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64):
            run = runner(rank, "allreduce", 64 * n, chunk_count=chunks, form=form, seed=chunks, order=order)
            for op in (SUM, MAX, AVG) if dtype.is_floating_point else (SUM, MAX):
                found = numbers(rank, 3 * 64 * n // dtype.itemsize, dtype)
                expected = found.to(torch.float64)
                run.all_reduce(found, op)
                dist.all_reduce(expected, MAX if op == MAX else SUM)
                expected = expected / n if op == AVG else expected
                assert torch.equal(found, expected.to(dtype)), (form, order, dtype, op)


def same_bits(rank):
    """Numbers whose sum depends on the order, added up twice; and fp32 between the roundings of bf16."""
    n = dist.get_world_size()
    for dtype in (torch.float32, torch.bfloat16):
        run = runner(rank, "allreduce", 256 * n, seed=4)
        first = torch.randn(256 * n // dtype.itemsize, generator=torch.Generator().manual_seed(rank)).to(dtype)
        again, exact = first.clone(), first.to(torch.float64)
        run.all_reduce(first)
        run.all_reduce(again)
        dist.all_reduce(exact)
        assert torch.equal(first, again)
        # Up to n - 1 roundings, of sums no greater than a few units.
        assert (first - exact).abs().max() <= n * torch.finfo(dtype).eps * exact.abs().max()
        everyone = [torch.empty_like(first) for _ in range(n)]
        dist.all_gather(everyone, first)
        assert all(torch.equal(first, other) for other in everyone)
    gather = runner(rank, "allreduce", 16 * n, form="gather")
    values = torch.full((8 * n,), 1.0 if rank == 0 else 2.0**-8, dtype=torch.bfloat16)
    gather.all_reduce(values)
    # 1 + (n - 1) / 256: in bf16, one at a time, every 1 / 256 would be lost.
    assert torch.equal(values, torch.full((8 * n,), 1 + (n - 1) / 256).to(torch.bfloat16))


def scattered_sums(rank):
    n = dist.get_world_size()
    for form, chunks in (("direct", 1), ("direct", 2), ("gather", 1)):
        run = runner(rank, "reduce_scatter", 64 * n, chunk_count=chunks, form=form, seed=7)
        given = numbers(rank, 32 * n)
        before = given.clone()
        found, expected = torch.zeros(32), torch.zeros(32)
        run.reduce_scatter(found, given)
        dist.reduce_scatter_tensor(expected, given)
        assert torch.equal(found, expected) and torch.equal(given, before)
        # In place: the output is this rank's piece of the input.
        run.reduce_scatter(given.view(n, -1)[rank], given)
        assert torch.equal(given.view(n, -1)[rank], expected)


def exchanges(rank):
    n = dist.get_world_size()
    for chunks, order in ((1, "levels"), (2, "global")):
        run = runner(rank, "alltoall", 32 * n, chunk_count=chunks, seed=chunks, order=order)
        given = numbers(rank, 24 * n)
        found, expected = torch.zeros(24 * n), torch.zeros(24 * n)
        run.all_to_all(found, given)
        dist.all_to_all_single(expected, given)
        assert torch.equal(found, expected)
        run.all_to_all(given, given)
        assert torch.equal(given, expected)


def uneven_exchanges(rank):
    n = dist.get_world_size()
    elements = [[(3 * s + 5 * d) % 7 for d in range(n)] for s in range(n)]
    pair_bytes = tuple(tuple(4 * e for e in row) for row in elements)
    total = sum(map(sum, pair_bytes))
    run = runner(rank, "alltoallv", total, pair_bytes=pair_bytes, seed=2)
    given = numbers(rank, sum(elements[rank]))
    splits = [elements[s][rank] for s in range(n)]
    found, expected = torch.zeros(sum(splits)), torch.zeros(sum(splits))
    run.all_to_all(found, given)
    dist.all_to_all_single(expected, given, splits, elements[rank])
    assert torch.equal(found, expected)


def rooted(rank):
    n, root = dist.get_world_size(), 2
    wide = numbers(rank, 16 * n)
    expected = wide.clone()
    dist.broadcast(expected, root)
    found = wide.clone()
    runner(rank, "broadcast", 64 * n, chunk_count=4, root=root).broadcast(found)
    assert torch.equal(found, expected)

    for form in ("direct", "gather"):
        found, total = wide.clone(), wide.clone()
        runner(rank, "reduce", 64 * n, root=root, form=form).reduce(found)
        dist.all_reduce(total)
        assert torch.equal(found, total if rank == root else wide)

    piece = torch.zeros(16)
    runner(rank, "scatter", 64 * n, root=root).scatter(piece, wide)
    assert torch.equal(piece, numbers(root, 16 * n).view(n, -1)[rank])

    together = torch.zeros(n, 16) if rank == root else None
    runner(rank, "gather", 64 * n, root=root, chunk_count=2).gather(together, piece)
    assert together is None or torch.equal(together.flatten(), numbers(root, 16 * n))


def small_batches(rank):
    """Many messages in a level are cut into batches at the same places on every rank."""
    n = dist.get_world_size()
    run = runner(rank, "alltoall", 8 * n * 40, chunk_count=40, seed=1)
    assert all(len(s.outgoing) + len(s.incoming) < 256 for s in run.staged(8 * n * 40).steps)
    given = numbers(rank, 2 * n * 40)
    found, expected = torch.zeros_like(given), torch.zeros_like(given)
    run.all_to_all(found, given)
    dist.all_to_all_single(expected, given)
    assert torch.equal(found, expected)


def refusals(rank):
    n = dist.get_world_size()
    with pytest.raises(InputError, match=f"the group has {n}"):
        Runner(*planned(topology_of(n // 2), "allgather", 64 * n), place=place(rank))
    asked = planned(topology_of(n), "allreduce", 64 * n)
    with pytest.raises(InputError, match="ascending order"):
        Runner(*asked, place=Place(place(rank).host, n - rank))
    with pytest.raises(InputError, match="run on"):
        Runner(*asked, place=Place(f"host {rank}"))
    with pytest.raises(InputError, match="differs between these two ranks"):
        Runner(*planned(topology_of(n), "allreduce", 64 * n, seed=int(rank == 1)), place=place(rank))
    other, _ = planned(topology_of(n), "allreduce", 128 * n)
    with pytest.raises(InputError, match="another problem"):
        Runner(other if rank == 1 else asked[0], asked[1], place=place(rank))

    run = Runner(*asked, place=place(rank))
    with pytest.raises(InputError, match="does not divide"):
        run.all_reduce(torch.zeros(n + 1, dtype=torch.uint8))
    with pytest.raises(InputError, match="whole elements"):
        run.all_reduce(torch.zeros(n // 2))
    with pytest.raises(InputError, match="not contiguous"):
        run.all_reduce(torch.zeros(4, n).t())
    with pytest.raises(InputError, match="bytes long"):
        run.run(torch.zeros(n), torch.zeros(2 * n))
    with pytest.raises(InputError, match="not done by a plan"):
        run.all_reduce(torch.zeros(n, dtype=torch.int64), AVG)
    with pytest.raises(InputError, match="is not allgather"):
        run.all_gather(torch.zeros(n), torch.zeros(1))
    # None of that has left anything behind.
    ones = torch.ones(n)
    run.all_reduce(ones)
    assert torch.equal(ones, torch.full((n,), float(n)))


def one_dies(rank):
    """The last rank dies in a ring; the others wait for one another, and all of them name it."""
    n = dist.get_world_size()
    run = runner(rank, "allgather", 64 * n, timeout_s=4, seed=3)
    if rank == n - 1:
        os._exit(0)
    begun = time.monotonic()
    with pytest.raises(PeerError, match=f"Rank {n - 1} does not answer") as refused:
        run.all_gather(torch.zeros(16 * n), torch.zeros(16))
    assert time.monotonic() - begun < 30
    assert refused.value.culprit == n - 1
    assert f"message {refused.value.message} (chunk" in str(refused.value)
    assert f"rank {refused.value.peer}" in str(refused.value)
    with pytest.raises(InputError, match="has lost a peer"):
        run.all_gather(torch.zeros(16 * n), torch.zeros(16))


SCENARIOS = (
    gathers,
    sums,
    same_bits,
    scattered_sums,
    exchanges,
    uneven_exchanges,
    rooted,
    small_batches,
    refusals,
)
