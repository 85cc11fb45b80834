"""A process group whose collectives are planned ones where a plan has them, and the inner group's own elsewhere.

It is a real ``torch.distributed`` process group on the inner group's backends, so that ``torch.distributed`` calls, DDP
(whose reducer calls it from C++), FSDP2 and functional collectives all come through it, and all that it does not take
over goes to the inner backends: barriers, sends and receives, coalesced calls of several tensors.

Whether a call is planned must come out the same on every rank without asking: it goes by sizes, types and operators
that all ranks have in common. An all-to-all with split sizes is therefore left to the inner group, whatever they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from loadmaster.errors import InputError
from loadmaster.executor.collective.agreement import Place
from loadmaster.executor.collective.calibration import Calibration
from loadmaster.executor.collective.calls import (
    CollectiveCall,
    Tensors,
    WorkQueue,
    even,
    laid_out,
    later_of,
    op_of,
    spreading,
    stacked,
)
from loadmaster.executor.collective.engine import Engine, MakeEngine, grain_bytes
from loadmaster.executor.collective.exchange import bytes_of, can_combine, kind_of
from loadmaster.executor.torch_private.distributed import (
    backend_of,
    device_types_of,
    register_backend,
    set_default_backend,
)
from loadmaster.models.collective.collectives import COMBINING
from loadmaster.models.collective.plan import Algorithm, CollectivePlan
from loadmaster.models.collective.problem import Collective, CollectiveProblem

# Sums and copies of single elements: these may be run on a few more elements than were asked for.
PADDED: tuple[Collective, ...] = ("allreduce", "broadcast", "reduce")


@dataclass(frozen=True)
class Entry:
    """A plan, and the engines that can run it, in the order in which they are asked."""

    problem: CollectiveProblem
    plan: CollectivePlan
    engines: tuple[Engine, ...]


Choice = tuple[Entry, Algorithm, Engine] | str
"""Plan, algorithm and engine that run a call; or the reason why no plan does."""


class PlannedGroup(dist.ProcessGroup):
    """Process group that runs a collective by plan where a plan fits, else by the inner group.

    Attributes:
        planned: calls that ran by plan, by collective and engine.
        padded: of these, how many ran on a few elements more, by collective.
        fell_back: calls that went to the inner group, by collective and reason.
        calibration: which sizes a plan was measured to win; None: it has all.
    """

    def __init__(
        self,
        name: str,
        inner: dist.ProcessGroup,
        plans: Iterable[tuple[CollectiveProblem, CollectivePlan]],
        engines: Sequence[MakeEngine],
        *,
        place: Place | None = None,
        largest_bytes: int | None = None,
    ) -> None:
        """Make the group; every rank of the inner group does so, with the same arguments. InputError: a plan that the
        group cannot run; two plans for one collective."""
        # Only this constructor makes a group whose methods C++ finds overridden; its stub does not list it.
        super().__init__(inner.rank(), inner.size())  # type: ignore[call-arg]
        self.inner, self._name = inner, name
        for device in device_types_of(inner):
            backend = backend_of(inner, device)
            kind = dist.Backend.backend_type_map.get(backend.name(), dist.ProcessGroup.BackendType.CUSTOM)
            register_backend(self, device, kind, backend)
            set_default_backend(self, kind)
        if inner.bound_device_id is not None:
            self.bound_device_id = inner.bound_device_id
        self.largest_bytes = largest_bytes
        self.entries: dict[tuple[Collective, int | None], Entry] = {}
        for problem, plan in plans:
            key = (problem.collective, problem.root)
            if key in self.entries:
                raise InputError("plans", list(key), "has two plans", "Give one plan per collective and root.")
            made = tuple(make(problem, plan, inner, place) for make in engines)
            self.entries[key] = Entry(problem, plan, made)
        self.works = WorkQueue(name)
        self.planned: Counter[tuple[str, str]] = Counter()
        self.padded: Counter[str] = Counter()
        self.fell_back: Counter[tuple[str, str]] = Counter()
        self.on = True
        self.calibration: Calibration | None = None
        self._coalesces = False
        self._choices: dict[tuple[object, ...], Choice] = {}

    @property
    def process_group(self) -> dist.ProcessGroup:
        """The group itself: calls are made of it."""
        return self

    @property
    def group_name(self) -> str:  # type: ignore[override]
        """Name of this group; its backends keep the inner group's."""
        return self._name

    def shutdown(self) -> None:
        """Run nothing more by plan. The backends are the inner group's, which shuts them down."""
        self.on = False
        self.works.close()

    def abort(self) -> None:
        """Abort the inner group's backends."""
        self.inner.abort()

    # The collectives of a process group. Each works out what is asked for, in the terms of a plan.

    def allreduce(self, tensors: Tensors, opts: Any = None, *rest: Any) -> Any:  # type: ignore[override]
        """Method behind ``torch.distributed.all_reduce``."""
        return self._all_reduce("allreduce", tensors, opts, rest)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Any:
        """Several all_reduce calls in one; planned where it is one."""
        return self._all_reduce("allreduce_coalesced", tensors, opts, ())

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        """Method behind ``torch.distributed.all_gather_into_tensor``."""
        call = CollectiveCall("allgather", output, input, bytes_of(output), [output], later_of(opts))
        return self._run(call, ALL_GATHER, output, input, opts)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        """Several all_gather_into_tensor calls in one; planned where it is one."""
        if len(outputs) != 1:
            return self._fall_back("allgather", "coalesced", ALL_GATHERS, outputs, inputs, opts)
        call = CollectiveCall("allgather", outputs[0], inputs[0], bytes_of(outputs[0]), outputs, later_of(opts))
        return self._run(call, ALL_GATHERS, outputs, inputs, opts)

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None, *rest: Any) -> Any:  # type: ignore[override]
        """Method behind ``torch.distributed.all_gather`` into a list."""
        if opts is None or rest:
            return self._fall_back("allgather", "form of call", "allgather", outputs, inputs, opts, *rest)
        if not even(outputs[0], inputs[0]):
            return self._fall_back("allgather", "uneven", "allgather", outputs, inputs, opts)
        together = inputs[0].new_empty(len(outputs[0]), inputs[0].numel())
        after = spreading(together, outputs[0])
        call = CollectiveCall(
            "allgather", together, inputs[0], bytes_of(together), outputs[0], later_of(opts), after=after
        )
        return self._run(call, "allgather", outputs, inputs, opts)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        """Method behind ``torch.distributed.reduce_scatter_tensor``."""
        call = CollectiveCall("reduce_scatter", output, input, bytes_of(input), [output], later_of(opts), op_of(opts))
        return self._run(call, REDUCE_SCATTER, output, input, opts)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        """Several reduce_scatter_tensor calls in one; planned where it is one."""
        if len(outputs) != 1:
            return self._fall_back("reduce_scatter", "coalesced", REDUCE_SCATTERS, outputs, inputs, opts)
        call = CollectiveCall(
            "reduce_scatter", outputs[0], inputs[0], bytes_of(inputs[0]), outputs, later_of(opts), op_of(opts)
        )
        return self._run(call, REDUCE_SCATTERS, outputs, inputs, opts)

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None, *rest: Any) -> Any:  # type: ignore[override]
        """Method behind ``torch.distributed.reduce_scatter`` from a list."""
        if opts is None or rest:
            return self._fall_back("reduce_scatter", "form of call", "reduce_scatter", outputs, inputs, opts, *rest)
        if not even(inputs[0], outputs[0]):
            return self._fall_back("reduce_scatter", "uneven", "reduce_scatter", outputs, inputs, opts)
        together = stacked(inputs[0])
        call = CollectiveCall(
            "reduce_scatter", outputs[0], together, bytes_of(together), outputs, later_of(opts), op_of(opts)
        )
        return self._run(call, "reduce_scatter", outputs, inputs, opts)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> Any:
        """Method behind ``torch.distributed.all_to_all_single``; planned where no sizes are given."""
        given = (output, input, output_splits, input_splits, opts)
        if len(output_splits) or len(input_splits):
            return self._fall_back("alltoall", "split sizes", ALL_TO_ALL, *given)
        call = CollectiveCall("alltoall", output, input, bytes_of(input), [output], later_of(opts))
        return self._run(call, ALL_TO_ALL, *given)

    def broadcast(self, tensors: Tensors, opts: Any = None, *rest: Any) -> Any:  # type: ignore[override]
        """Method behind ``torch.distributed.broadcast``."""
        if opts is None or rest or isinstance(opts, int):
            return self._fall_back("broadcast", "form of call", "broadcast", tensors, opts, *rest)
        (tensor,) = tensors
        given = tensor if opts.rootRank == self.rank() else None
        call = CollectiveCall("broadcast", tensor, given, bytes_of(tensor), tensors, later_of(opts), root=opts.rootRank)
        return self._run(call, "broadcast", tensors, opts)

    def reduce(self, tensors: Tensors, opts: Any = None, *rest: Any) -> Any:  # type: ignore[override]
        """Method behind ``torch.distributed.reduce``."""
        if opts is None or rest or isinstance(opts, int):
            return self._fall_back("reduce", "form of call", "reduce", tensors, opts, *rest)
        (tensor,) = tensors
        taken = tensor if opts.rootRank == self.rank() else None
        call = CollectiveCall(
            "reduce", taken, tensor, bytes_of(tensor), tensors, later_of(opts), op_of(opts), opts.rootRank
        )
        return self._run(call, "reduce", tensors, opts)

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None, *rest: Any) -> Any:  # type: ignore[override]
        """Method behind ``torch.distributed.scatter``."""
        if opts is None or rest or isinstance(opts, int):
            return self._fall_back("scatter", "form of call", "scatter", outputs, inputs, opts, *rest)
        given = stacked(inputs[0]) if opts.rootRank == self.rank() else None
        size_bytes = self.size() * bytes_of(outputs[0])
        call = CollectiveCall("scatter", outputs[0], given, size_bytes, outputs, later_of(opts), root=opts.rootRank)
        return self._run(call, "scatter", outputs, inputs, opts)

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None, *rest: Any) -> Any:  # type: ignore[override]
        """Method behind ``torch.distributed.gather``."""
        if opts is None or rest or isinstance(opts, int):
            return self._fall_back("gather", "form of call", "gather", outputs, inputs, opts, *rest)
        at_root = opts.rootRank == self.rank()
        together = inputs[0].new_empty(self.size(), inputs[0].numel()) if at_root else None
        filled = outputs[0] if at_root else inputs
        after = spreading(together, filled)
        size_bytes = self.size() * bytes_of(inputs[0])
        call = CollectiveCall(
            "gather", together, inputs[0], size_bytes, filled, later_of(opts), root=opts.rootRank, after=after
        )
        return self._run(call, "gather", outputs, inputs, opts)

    def barrier(self, opts: Any = None, *rest: Any) -> Any:
        """The inner group's barrier; unless it is asynchronous, planned calls begun before are over then too."""
        if not later_of(opts):
            self.works.drain()
        return self.inner.barrier(*_given((opts, *rest)))

    def _start_coalescing(self, device: torch.device) -> None:
        """Leave all calls to the inner group until the coalescing ends: it makes one of them."""
        self.inner._start_coalescing(device)
        self._coalesces = True

    def _end_coalescing(self, device: torch.device) -> Any:
        self._coalesces = False
        return self.inner._end_coalescing(device)

    # Names of the same methods in earlier releases of PyTorch.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced  # type: ignore[assignment]
    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced  # type: ignore[assignment]
    alltoall_base = all_to_all_single  # type: ignore[assignment]

    def _all_reduce(self, name: str, tensors: Tensors, opts: Any, rest: tuple[Any, ...]) -> Any:
        if rest or isinstance(tensors, torch.Tensor) or not hasattr(opts, "reduceOp"):
            return self._fall_back("allreduce", "form of call", name, tensors, opts, *rest)
        if len(tensors) != 1:
            return self._fall_back("allreduce", "coalesced", name, tensors, opts)
        (tensor,) = tensors
        call = CollectiveCall("allreduce", tensor, tensor, bytes_of(tensor), tensors, later_of(opts), op_of(opts))
        return self._run(call, name, tensors, opts)

    def _fall_back(self, collective: Collective, why: str, name: str, *given: Any) -> Any:
        self.fell_back[collective, why] += 1
        return getattr(self.inner, name)(*_given(given))

    def _run(self, call: CollectiveCall, name: str, *given: Any) -> Any:
        """Run a call by plan, or by the inner group's method of that name."""
        found: Choice = "coalesced" if self._coalesces else "switched off"
        if self.on and not self._coalesces:
            of = call.tensor.dtype, call.tensor.device, call.tensor.layout
            key = (call.collective, call.root, call.size_bytes, kind_of(call.op), *of)
            if key not in self._choices:
                self._choices[key] = self.choose(call)
            found = self._choices[key]
        if isinstance(found, str):
            return self._fall_back(call.collective, found, name, *given)
        entry, algorithm, engine = found
        self.planned[call.collective, engine.name] += 1
        grain = grain_bytes(entry.problem, algorithm, call.tensor.element_size())
        short_bytes = -call.size_bytes % grain
        if short_bytes:
            self.padded[call.collective] += 1

        def job() -> None:
            with torch.no_grad():
                output, spill = laid_out(call.output, short_bytes)
                given_input = output if call.input is call.output else laid_out(call.input, short_bytes)[0]
                engine.run(algorithm, output, given_input, call.op, call.size_bytes + short_bytes)
                if spill is not None:
                    spill()
                if call.after is not None:
                    call.after()

        touched = [tensor for tensor in (call.output, call.input, *call.filled) if tensor is not None]
        return self.works.start(job, touched, call.filled, call.later)

    def forget(self) -> None:
        """Forget what runs which call, to decide it again, and count from here."""
        for kept in (self._choices, self.planned, self.padded, self.fell_back):
            kept.clear()

    def choose(self, call: CollectiveCall) -> Choice:
        """Choose what runs a call, or say why no plan does."""
        entry = self.entries.get((call.collective, call.root))
        if entry is None and call.root == 0:
            entry = self.entries.get((call.collective, None))
        if entry is None:
            return "no plan"
        tensor = call.tensor
        if tensor.layout != torch.strided:
            return "not dense"
        if call.collective in COMBINING and not can_combine(call.op, tensor.dtype):
            return "operator or type"
        if not call.size_bytes:
            return "empty"
        if call.size_bytes < entry.plan.algorithms[0].from_bytes:
            return "size"
        if self.largest_bytes is not None and call.size_bytes > self.largest_bytes:
            return "size"
        known = None if call.shared else self.calibration
        if known is not None and not known.wins(call.collective, call.size_bytes):
            return "measured slower"
        algorithm = entry.plan.algorithm_for(call.size_bytes)
        if (
            call.size_bytes % grain_bytes(entry.problem, algorithm, tensor.element_size())
            and call.collective not in PADDED
        ):
            return "does not divide"
        for engine in entry.engines:
            adds = call.collective not in COMBINING or kind_of(call.op) in engine.operators
            if adds and engine.supports(call.collective, tensor, algorithm):
                return entry, algorithm, engine
        return "no engine"


def _given(arguments: Iterable[Any]) -> Iterable[Any]:
    """Drop options that were not given, which are not passed on."""
    return (argument for argument in arguments if argument is not None)


def _first_of(*names: str) -> str:
    """Pick the name by which this release of PyTorch has a method."""
    return next(name for name in names if hasattr(dist.ProcessGroup, name))


ALL_GATHER = _first_of("all_gather_single", "_allgather_base")
ALL_GATHERS = _first_of("all_gather_single_coalesced", "allgather_into_tensor_coalesced")
REDUCE_SCATTER = _first_of("reduce_scatter_single", "_reduce_scatter_base")
REDUCE_SCATTERS = _first_of("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced")
ALL_TO_ALL = _first_of("all_to_all_single", "alltoall_base")
