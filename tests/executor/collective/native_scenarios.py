"""Scenarios of the compiled backend, on CPUs: what is launched is a function of the test, which moves the bytes over
a gloo group beside the one that is wrapped.
"""

from __future__ import annotations

import ctypes

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel

import loadmaster
from loadmaster.errors import InputError
from loadmaster.executor import collective
from loadmaster.executor.collective.calibration import Calibration, Timing
from loadmaster.executor.collective.faults import PeerError
from tests.executor.collective.group_scenarios import everything, plans
from tests.executor.collective.runner_scenarios import numbers, place

NAMES = ("allreduce", "allgather", "reduce_scatter", "alltoall")
_VOID = ctypes.c_void_p
ENQUEUE = ctypes.CFUNCTYPE(
    ctypes.c_int, _VOID, *(ctypes.c_uint,) * 7, _VOID, ctypes.POINTER(_VOID), _VOID
)  # fmt: skip


class Fields(ctypes.Structure):
    _fields_ = (("input", ctypes.c_uint64), ("output", ctypes.c_uint64))


class Launch:
    def __init__(self, number):
        self.fields = Fields()
        self.address = (number + 1, 1, 1, ctypes.addressof(self.fields), 0)


class Call:
    def __init__(self, collective, size_bytes, dtype, ranks, launch):
        self.collective, self.dtype, self.launches = collective, dtype, (launch,)
        self.input_bytes = size_bytes // ranks if collective == "allgather" else size_bytes
        self.output_bytes = size_bytes // ranks if collective == "reduce_scatter" else size_bytes


class Launcher:
    """Launches on the CPU, of all engines of a process."""

    def __init__(self, group):
        self.device, self.group, self.calls, self.ordered = torch.device("cpu"), group, [], []
        self.regions = []
        self._stream, self._failure = ctypes.c_int64(-1), ctypes.c_int64(0)
        self._enqueue = ENQUEUE(self.enqueue)
        self.enqueue_address = ctypes.cast(self._enqueue, _VOID).value
        self.stream_address, self.failure_address = map(ctypes.addressof, (self._stream, self._failure))

    def order(self, stream):
        self.ordered.append(stream)
        self._stream.value = stream

    def fail(self):
        self._failure.value = 1

    def raise_failure(self):
        raise PeerError("rank 1 does not answer", 0, 0, (), 1, 1)

    def enqueue(self, number, *rest):
        call = self.calls[number - 1]
        fields = call.launches[0].fields
        given, output = (
            torch.frombuffer((ctypes.c_char * count).from_address(at), dtype=call.dtype)
            for at, count in ((fields.input, call.input_bytes), (fields.output, call.output_bytes))
        )
        if call.collective == "allreduce":
            total = given.clone()
            dist.all_reduce(total, group=self.group)
            output.copy_(total)
        elif call.collective == "allgather":
            dist.all_gather_into_tensor(output, given.clone(), group=self.group)
        elif call.collective == "reduce_scatter":
            dist.reduce_scatter_tensor(output, given.clone(), group=self.group)
        else:
            dist.all_to_all_single(output, given.clone(), group=self.group)
        return 0


class Engine:
    """Launches whole numbers of elements; sums and averages of floats."""

    name = "launched"
    operators = (dist.ReduceOp.SUM, dist.ReduceOp.AVG)
    made = None  # the launcher of this process

    def __init__(self, problem, plan, group, place):
        self.problem = problem
        self.launcher = Engine.made

    def supports(self, collective, tensor, algorithm):
        return tensor.dtype == torch.float32

    def empty(self, size_bytes):
        return torch.zeros(-(-size_bytes // 16) * 16, dtype=torch.uint8), 5

    def prepared(self, algorithm, size_bytes, dtype, region=None):
        self.launcher.regions.append(region)
        launch = Launch(len(self.launcher.calls))
        call = Call(self.problem.collective, size_bytes, dtype, dist.get_world_size(), launch)
        self.launcher.calls.append(call)
        return call


def use(rank, **more):
    if Engine.made is None:
        Engine.made = Launcher(dist.new_group())
    Engine.made.calls.clear()
    return collective.use(plans(*NAMES), place=place(rank), engines=(Engine,), **{"calibrate": False, **more})


def calls_are_launched(rank):
    expected = everything(rank, False)
    for asynchronous in (False, True):
        with use(rank) as installed:
            assert installed.compiled and dist.group.WORLD is installed.group
            found = everything(rank, asynchronous)
            counted = installed.stats()
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other)
        assert counted["planned"] == {one: {"launched": 1} for one in NAMES}, counted
        # A maximum, 7 elements, lists, splits, and what has no plan are the inner group's.
        assert counted["fell_back"]["allreduce"] == {"no engine": 1, "does not divide": 1}
        assert counted["fell_back"]["alltoall"] == {"split sizes": 1}
        assert counted["fell_back"]["allgather"] == {"list": 1}
        assert counted["fell_back"]["broadcast"] == {"no plan": 2}


def forms_of_calls(rank):
    n = dist.get_world_size()
    with use(rank) as installed:
        x = numbers(rank, 32 * n)
        total = x.clone()
        dist.all_reduce(total)
        average = x.clone()
        dist.all_reduce(average, dist.ReduceOp.AVG)
        assert torch.allclose(average, total / n)
        ones = torch.ones(16 * n)
        assert torch.equal(functional.wait_tensor(functional.all_reduce(ones, "sum", dist.group.WORLD)), ones * n)
        gathered = functional.all_gather_tensor(torch.full((8,), float(rank)), 0, dist.group.WORLD)
        assert torch.equal(functional.wait_tensor(gathered), torch.arange(float(n)).repeat_interleave(8))
        transposed = torch.arange(4.0 * n).view(4, n).t()
        dist.all_reduce(transposed)
        assert torch.equal(transposed, n * torch.arange(4.0 * n).view(4, n).t())
        several = [torch.ones(4 * n), torch.ones(4 * n)]
        dist.all_reduce_coalesced(several)
        assert all(torch.equal(one, torch.full_like(one, n)) for one in several)
        work = dist.all_reduce(ones, async_op=True)
        (filled,) = work.get_future().wait()
        assert filled.data_ptr() == ones.data_ptr() and work.is_completed() and work.is_success()
        counted = installed.stats()
        assert counted["planned"] == {"allreduce": {"launched": 4}, "allgather": {"launched": 1}}
        assert counted["fell_back"] == {"allreduce": {"not contiguous": 1, "coalesced": 1}}
        # One stream, which was new to the launches once.
        assert Engine.made.ordered[-1:] == Engine.made.ordered[:1] == [0]
    assert dist.group.WORLD is installed.inner
    dist.all_reduce(ones)


def gradients_of_ddp(rank):
    def gradients(group):
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Linear(64, 64, bias=False), process_group=group)
        model(numbers(rank, 64 * 8).view(8, 64)).square().sum().backward()
        return model.module.weight.grad

    expected = gradients(None)
    with use(rank) as installed:
        assert torch.allclose(gradients(installed.group), expected)
        assert installed.stats()["planned"]["allreduce"] == {"launched": 1}


def a_failure_is_raised(rank):
    with use(rank):
        ones = torch.ones(8 * dist.get_world_size())
        dist.all_reduce(ones)
        Engine.made.fail()
        with pytest.raises(PeerError, match="does not answer"):
            dist.all_reduce(ones)
    Engine.made = None
    dist.all_reduce(ones)


def what_is_slower_stays(rank):
    """A calibration decides; it is measured, kept in a file, and refused elsewhere."""
    n = dist.get_world_size()
    with use(rank, calibrate=True, largest_bytes=4096) as installed:
        measured = installed.calibration
        sizes = {"allreduce": [1024, 2048, 4096]}
        assert [t.size_bytes for t in measured.timings if t.collective == "allreduce"] == sizes["allreduce"]
        assert all(t.planned_us > 0 and t.inner_us > 0 for t in measured.timings)
        for timing in measured.timings:
            assert f"{timing.size_bytes:,}" in str(measured)
        dist.all_reduce(torch.ones(256))
        counted = installed.stats()
        first = next(t for t in measured.timings if t.collective == "allreduce")
        said = counted["planned"] if first.won else counted["fell_back"]
        assert said == {"allreduce": {"launched" if first.won else "measured slower": 1}}
    decided = Calibration("cpu", n, measured.plans, (Timing("allreduce", 1024, 1, 2), Timing("allreduce", 4096, 2, 1)))
    with use(rank, calibrate=decided) as installed:
        for count in (128, 256, 512, 1024, 2048):
            dist.all_reduce(torch.ones(count))
        assert installed.stats()["planned"] == {"allreduce": {"launched": 2}}
        assert installed.stats()["fell_back"] == {"allreduce": {"measured slower": 3}}
    elsewhere = Calibration("cpu", n + 1, measured.plans, measured.timings)
    with pytest.raises(InputError, match=r"calibrate\.ranks"):
        use(rank, calibrate=elsewhere)
    with pytest.raises(InputError, match="is no calibration"):
        use(rank, calibrate="missing.json")
    with pytest.raises(InputError, match="differs between ranks"):
        use(rank, calibrate=bool(rank % 2))


def calls_on_shared_memory(rank):
    """They are told from others by output or, of a reduce-scatter, input, and run by plan whatever was measured."""
    n = dist.get_world_size()
    with use(rank, calibrate=True, largest_bytes=4096) as installed:
        slower = tuple(Timing(one, 1024, 2, 1) for one in NAMES)
        known = Calibration("cpu", n, installed.calibration.plans, slower)
    with use(rank, calibrate=known) as installed:
        del Engine.made.regions[:]
        shared = installed.empty(4, n, 64)
        assert shared.shape == (4, n, 64) and shared.dtype == torch.get_default_dtype()
        assert installed.empty(3, dtype=torch.int8).dtype == torch.int8
        for memory, region in ((shared, 5), (torch.zeros(4, n, 64), None)):
            memory[1] = torch.arange(n * 64).view(n, 64) + rank
            dist.all_gather_into_tensor(memory[0].view(-1), memory[1][rank].clone())
            assert torch.equal(memory[0], torch.stack([torch.arange(64) + 64 * k + k for k in range(n)]).float())
            scattered = torch.empty(64)
            dist.reduce_scatter_tensor(scattered, memory[1].view(-1))
            total = n * torch.arange(n * 64).view(n, 64) + n * (n - 1) / 2
            assert torch.equal(scattered, total[rank])
            dist.all_to_all_single(memory[2].view(-1), memory[1].view(-1))
            assert torch.equal(memory[2], torch.stack([torch.arange(64) + 64.0 * rank + k for k in range(n)]))
            dist.all_reduce(memory[1])
            assert torch.equal(memory[1], total)
            launched = [] if region is None else [region] * 4
            assert Engine.made.regions == launched, Engine.made.regions
            del Engine.made.regions[:]


def other_releases_are_refused(rank):
    kept, loadmaster.__version__ = loadmaster.__version__, f"0.0.{rank}"
    try:
        with pytest.raises(InputError, match="versions: differs between ranks"):
            use(rank)
    finally:
        loadmaster.__version__ = kept


SCENARIOS = (
    calls_are_launched,
    forms_of_calls,
    gradients_of_ddp,
    what_is_slower_stays,
    calls_on_shared_memory,
    other_releases_are_refused,
    a_failure_is_raised,
)
