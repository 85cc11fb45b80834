"""Scenarios of the process group: its calls as without plans, what it refuses, and how it comes and goes."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

from loadmaster.errors import InputError
from loadmaster.executor import collective
from loadmaster.executor.collective.engine import ReferenceEngine
from loadmaster.models import kinds
from tests.executor.collective.planned import planned, topology_of
from tests.executor.collective.runner_scenarios import numbers, place


def plans(*collectives, **more):
    n = dist.get_world_size()
    return [planned(topology_of(n), one, 64 * n, **more.get(one, {})) for one in collectives]


ALL = ("allgather", "allreduce", "reduce_scatter", "alltoall", "broadcast", "reduce", "scatter", "gather")
ROOTED = {one: {"root": 1, "chunk_count": 2} for one in ("broadcast", "reduce", "scatter", "gather")}


def use(rank, *collectives, **more):
    made = plans(*(collectives or ALL), **ROOTED)
    return collective.use(made, place=place(rank), calibrate=False, **more)


def everything(rank, asynchronous):
    """One call of every kind: what came out, in order."""
    n = dist.get_world_size()
    x, small = numbers(rank, 32 * n), numbers(rank, 32)
    found = []

    def call(function, *given, **more):
        work = function(*given, async_op=asynchronous, **more)
        if asynchronous:
            work.wait()

    for size, op in ((32 * n, dist.ReduceOp.SUM), (33, dist.ReduceOp.MAX), (7, dist.ReduceOp.SUM)):
        found.append(numbers(rank, size))
        call(dist.all_reduce, found[-1], op)
    found.append(x.new_zeros(32 * n))
    call(dist.all_gather_into_tensor, found[-1], small)
    pieces = [torch.zeros(2, 16) for _ in range(n)]
    call(dist.all_gather, pieces, small.view(2, 16))
    found.append(torch.cat(pieces))
    found.append(small.new_zeros(32))
    call(dist.reduce_scatter_tensor, found[-1], x)
    found.append(small.new_zeros(32))
    call(dist.reduce_scatter, found[-1], list(x.view(n, -1).clone()))
    found.append(torch.zeros_like(x))
    call(dist.all_to_all_single, found[-1], x)
    splits = [(rank + d) % 2 for d in range(n)]
    found.append(x.new_zeros(sum(splits)))
    call(dist.all_to_all_single, found[-1], x[: sum(splits)], splits, splits)
    for root in (1, 0):
        found.append(numbers(rank, 35))
        call(dist.broadcast, found[-1], root)
        total = numbers(rank, 35)
        call(dist.reduce, total, root)
        if rank == root:
            found.append(total)
        found.append(torch.zeros(32))
        call(dist.scatter, found[-1], list(x.view(n, -1).clone()) if rank == root else None, root)
        together = [torch.zeros(32) for _ in range(n)] if rank == root else None
        call(dist.gather, small, together, root)
        found += together or []
    return found


def calls(rank):
    expected = everything(rank, False)
    for asynchronous in (False, True):
        with use(rank) as installed:
            found = everything(rank, asynchronous)
            counted = collective.stats()
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other)
        assert counted == installed.stats()
        assert counted["planned"] == {
            **{one: {"reference": 1} for one in ("alltoall", *ROOTED)},
            **{one: {"reference": 2} for one in ("allgather", "reduce_scatter")},
            "allreduce": {"reference": 3},
        }
        assert counted["padded"] == {"allreduce": 2, "broadcast": 1, "reduce": 1}
        assert counted["fell_back"] == {"alltoall": {"split sizes": 1}, **{one: {"no plan": 1} for one in ROOTED}}


def fall_backs(rank):
    n = dist.get_world_size()
    with use(rank, "allreduce", "allgather", largest_bytes=1024 * n):
        bits = torch.full((8 * n,), 1 << rank, dtype=torch.int64)
        dist.all_reduce(bits, dist.ReduceOp.BOR)
        assert torch.equal(bits, torch.full_like(bits, (1 << n) - 1))
        large = torch.ones(512 * n)
        dist.all_reduce(large)
        assert torch.equal(large, torch.full_like(large, n))
        several = [torch.ones(4 * n), torch.ones(4 * n)]
        dist.all_reduce_coalesced(several)
        assert all(torch.equal(one, torch.full_like(one, n)) for one in several)
        dist.all_gather([torch.zeros(0)] * n, torch.zeros(0))
        transposed = torch.arange(4.0 * n).view(4, n).t()
        dist.all_reduce(transposed)
        assert torch.equal(transposed, n * torch.arange(4.0 * n).view(4, n).t())
        dist.barrier()
        assert collective.stats()["fell_back"] == {
            "allreduce": {"operator or type": 1, "size": 1, "coalesced": 1}, "allgather": {"empty": 1}
        }  # fmt: skip
        assert collective.stats()["planned"] == {"allreduce": {"reference": 1}}


def engines_in_turn(rank):
    """The first engine that supports a call gets it."""

    class Halves(ReferenceEngine):
        name = "halves"
        operators = (dist.ReduceOp.SUM,)

        def supports(self, collective, tensor, algorithm):
            return tensor.dtype == torch.float16

    with use(rank, "allreduce", engines=(Halves, ReferenceEngine)):
        dist.all_reduce(torch.ones(64, dtype=torch.float16))
        dist.all_reduce(torch.ones(64, dtype=torch.float16), dist.ReduceOp.MAX)
        dist.all_reduce(torch.ones(64))
        assert collective.stats()["planned"] == {"allreduce": {"halves": 1, "reference": 2}}
    with use(rank, "allreduce", engines=(Halves,)):
        ones = torch.ones(64)
        dist.all_reduce(ones)
        assert ones[0] == dist.get_world_size()
        assert collective.stats()["fell_back"] == {"allreduce": {"no engine": 1}}


def other_traffic(rank):
    """Sends, receives, objects, functional collectives and new groups, while planned calls are under way."""
    n = dist.get_world_size()
    with use(rank, "allreduce", "allgather", "reduce_scatter") as installed:
        total = torch.ones(64 * n)
        work = dist.all_reduce(total, async_op=True)
        got = torch.zeros(3)
        operations = [
            dist.P2POp(dist.isend, torch.full((3,), float(rank)), (rank + 1) % n),
            dist.P2POp(dist.irecv, got, (rank - 1) % n),
        ]
        assert operations[0].group is installed.inner
        for one in dist.batch_isend_irecv(operations):
            one.wait()
        assert torch.equal(got, torch.full((3,), float((rank - 1) % n)))
        work.wait()
        assert torch.equal(total, torch.full_like(total, n))

        said = [None] * n
        dist.all_gather_object(said, {"rank": rank})
        assert said == [{"rank": r} for r in range(n)]
        world = dist.group.WORLD
        assert world is installed.group and dist.get_backend() == "gloo" and dist.get_rank() == rank
        ones = torch.ones(16 * n)
        assert torch.equal(functional.wait_tensor(functional.all_reduce(ones, "sum", world)), ones * n)
        assert torch.equal(functional.wait_tensor(functional.all_gather_tensor(torch.ones(16), 0, world)), ones)
        part = functional.wait_tensor(functional.reduce_scatter_tensor(ones, "sum", 0, world))
        assert torch.equal(part, torch.full((16,), float(n)))
        counted = collective.stats()["planned"]
        assert counted["reduce_scatter"] == {"reference": 1} and counted["allreduce"] == {"reference": 2}

        half = dist.new_group([0, 1])
        if rank < 2:
            pair = torch.ones(4)
            dist.all_reduce(pair, group=half)
            assert torch.equal(pair, torch.full((4,), 2.0))
    ones = torch.ones(4)
    dist.all_reduce(ones)
    assert ones[0] == n and not isinstance(dist.group.WORLD, collective.PlannedGroup)


def one_group_of_several(rank):
    """A group that is not the default one is wrapped, and passed on by hand."""
    n = dist.get_world_size()
    pair = dist.new_group([0, 1])
    if rank < 2:
        mine = planned(topology_of(2), "allreduce", 64)
        with collective.use([mine], pair, place=collective.Place("host", rank), calibrate=False) as installed:
            ones = torch.ones(16)
            dist.all_reduce(ones, group=installed.group)
            assert torch.equal(ones, torch.full((16,), 2.0))
            assert installed.stats()["planned"] == {"allreduce": {"reference": 1}}
    everyone = torch.ones(4)
    dist.all_reduce(everyone)
    assert everyone[0] == n


def refused_groups(rank):
    with pytest.raises(InputError, match="not installed"):
        collective.stats()
    with pytest.raises(InputError, match="two plans"):
        use(rank, "allreduce", "allreduce")
    with use(rank, "allreduce"), pytest.raises(InputError, match="planned already"):
        use(rank, "allgather")
    assert not isinstance(dist.group.WORLD, collective.PlannedGroup)


def documents(rank):
    """Plans by path; what one rank cannot read, or has otherwise, is refused by all."""
    n = dist.get_world_size()
    made = plans("allreduce", "allgather")
    with tempfile.TemporaryDirectory() as folder:
        for problem, plan in made:
            both = {"problem": kinds.write_problem(problem), "plan": kinds.write_plan(plan)}
            Path(folder, f"{problem.collective}.json").write_text(json.dumps(both))
        with collective.use(folder, place=place(rank), calibrate=False):
            ones = torch.ones(16 * n)
            dist.all_reduce(ones)
            assert ones[0] == n
            assert collective.stats()["planned"] == {"allreduce": {"reference": 1}}
        gone = Path(folder, "allreduce.json" if rank else "none.json")
        with pytest.raises(InputError, match="no such file" if rank == 0 else "on rank 0|rank: was refused.*no such"):
            collective.use([gone], place=place(rank))
    with pytest.raises(InputError, match="plans: differs between ranks 0 and 1"):
        collective.use(made[: 2 - (rank == 1)], place=place(rank))
    with pytest.raises(InputError, match="largest_bytes: differs between ranks 0 and 1"):
        collective.use(made, place=place(rank), largest_bytes=rank)
    with pytest.raises(InputError, match="are none"):
        collective.use([], place=place(rank))
    with pytest.raises(InputError, match=f"the group has {n}"):
        collective.use([planned(topology_of(n // 2), "allgather", 64 * n)], place=place(rank))
    assert not isinstance(dist.group.WORLD, collective.PlannedGroup)


def destroyed(rank):
    """All groups are destroyed while planned calls are on; a new world has none of it."""
    n = dist.get_world_size()
    use(rank, "allreduce")
    ones = torch.ones(1 << 16)
    work = dist.all_reduce(ones, async_op=True)
    dist.barrier()
    store = dist.PrefixStore("again", dist.distributed_c10d._get_default_store())
    dist.destroy_process_group()
    assert work.is_completed() and ones[0] == n
    collective.disable()
    dist.init_process_group("gloo", store=store, rank=rank, world_size=n)
    with use(rank, "allreduce"):
        dist.all_reduce(ones)
    assert ones[0] == n * n


SCENARIOS = (
    calls,
    fall_backs,
    engines_in_turn,
    other_traffic,
    one_group_of_several,
    refused_groups,
    documents,
    destroyed,
)
