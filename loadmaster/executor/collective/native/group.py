"""A process group whose planned calls run in C++: of torch's own type, with the compiled backend for its GPU.

What runs a call is decided by :class:`loadmaster.executor.collective.process_group.PlannedGroup`, once for each kind
and size, and kept by the backend. Calls that would need work in Python (elements to fill up with, lists of tensors) go
to the inner group, which is faster than that.
"""

from __future__ import annotations

from collections import Counter
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from loadmaster.executor.collective.calls import Call
from loadmaster.executor.collective.engine import grain_bytes
from loadmaster.executor.collective.native.launching import LaunchEngine, Launcher
from loadmaster.executor.collective.process_group import PlannedGroup
from loadmaster.executor.torch_private.distributed import (
    backend_of,
    device_types_of,
    register_backend,
    set_default_backend,
    set_group_name,
    store_of,
)
from loadmaster.models.collective.problem import Collective

Decision = tuple[str, bool, int, int, list[tuple[int, int, int, int, int]]]
"""Engine or reason; whether it is planned; bytes of input and of output; launches, as of
:class:`loadmaster.executor.collective.native.launching.PreparedLaunch`."""


def launcher_of(group: PlannedGroup) -> Launcher | None:
    """Return what launches a group's planned calls; None: an engine of it does more than launch."""
    engines = [engine for entry in group.entries.values() for engine in entry.engines]
    launchers = [engine.launcher if isinstance(engine, LaunchEngine) else None for engine in engines]
    return launchers[0] if all(launchers) else None


class NativeGroup:
    """Holder of a process group whose planned calls run in C++.

    It is not a process group itself: one that is made in Python holds Python's lock while it waits for the inner one.

    Attributes:
        process_group: of torch's own type.
        planned_group: decides.
        inner: the group that is wrapped.
    """

    def __init__(self, name: str, planned_group: PlannedGroup, launcher: Launcher, module: ModuleType) -> None:
        """Make the group; every rank of the inner group does so, with the same arguments.

        Args:
            planned_group: see :func:`launcher_of`.
            launcher: its engines'.
            module: the compiled backend's.
        """
        inner = planned_group.inner
        store: Any = store_of(inner)
        group = self.process_group = dist.ProcessGroup(store, inner.rank(), inner.size())
        self.planned_group, self.inner = planned_group, inner
        device = launcher.device
        self._launcher = launcher  # the backend holds addresses of what it keeps
        backend = module.PlannedBackend(
            inner.rank(),
            inner.size(),
            backend_of(inner, device),
            device,
            launcher.enqueue_address,
            launcher.stream_address,
            launcher.failure_address,
            self._choose,
            launcher.order,
            launcher.raise_failure,
        )
        self.backend = backend
        if inner.bound_device_id is not None:
            group.bound_device_id = inner.bound_device_id
        # The planned one first: devices that share a kind of backend get the first of that kind.
        for one in sorted(device_types_of(inner), key=lambda one: one.type != device.type):
            of_inner = backend_of(inner, one)
            kind = dist.Backend.backend_type_map.get(of_inner.name(), dist.ProcessGroup.BackendType.CUSTOM)
            register_backend(group, one, kind, backend if one.type == device.type else of_inner)
            set_default_backend(group, kind)
        given: Any = name
        set_group_name(group, given)

    @property
    def planned(self) -> Counter[tuple[str, str]]:
        """Calls that ran by plan, by collective and engine."""
        return self._counted(by_plan=True)

    @property
    def padded(self) -> Counter[str]:
        """Calls that were padded: none, since such calls are the inner group's."""
        return Counter()

    @property
    def fell_back(self) -> Counter[tuple[str, str]]:
        """Calls that went to the inner group, by collective and reason."""
        return self._counted(by_plan=False)

    def forget(self) -> None:
        """Forget what runs which call, and count from here. No call may be under way in another thread."""
        self.planned_group.forget()
        self.backend.forget()

    def shutdown(self) -> None:
        """Run nothing more by plan. The backends are the inner group's, which shuts them down."""
        self.backend.shutdown()
        self.planned_group.shutdown()

    def _counted(self, *, by_plan: bool) -> Counter[tuple[str, str]]:
        counted: Counter[tuple[str, str]] = Counter()
        for collective, detail, planned, calls in self.backend.counts():
            if planned == by_plan and calls:
                counted[collective, detail] += calls
        return counted

    def share(self, memory: torch.Tensor, region: int) -> None:
        """Register shared memory, so that calls on it are told from others."""
        self.backend.share(memory.data_ptr(), memory.data_ptr() + memory.nbytes, region)

    def _choose(
        self, collective: Collective, root: int, op: object, tensor: torch.Tensor, size_bytes: int, region: int
    ) -> Decision:
        call = Call(
            collective,
            tensor,
            tensor,
            size_bytes,
            [tensor],
            later=False,
            op=op,
            root=None if root < 0 else root,
            shared=region >= 0,
        )
        found = self.planned_group.choose(call)
        if isinstance(found, str):
            return found, False, 0, 0, []
        entry, algorithm, engine = found
        if size_bytes % grain_bytes(entry.problem, algorithm, tensor.element_size()):
            return "does not divide", False, 0, 0, []
        assert isinstance(engine, LaunchEngine)
        made = engine.prepared(algorithm, size_bytes, tensor.dtype, None if region < 0 else region)
        return engine.name, True, made.input_bytes, made.output_bytes, [one.address for one in made.launches]
