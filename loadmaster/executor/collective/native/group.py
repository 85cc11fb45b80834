"""A process group whose planned calls run in C++: of torch's own type, with the compiled backend for its GPU.

:class:`loadmaster.executor.collective.process_group.PlannedGroup` decides what runs a call, once for each kind and
size; the backend keeps it. Calls that would need work in Python (elements to fill up with, lists of tensors) go to the
inner group, which is faster than that.

Engines give the backend launches, complete but for two addresses. The backend is compiled once, kept in the user's
cache folder, and loaded as a Python module. It belongs to one release of PyTorch and of Python, which the name of its
folder stands for: an old one is not found.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import logging
import os
import sys
import sysconfig
from collections import Counter
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist

from loadmaster.executor.collective.calls import CollectiveCall
from loadmaster.executor.collective.engine import grain_bytes
from loadmaster.executor.collective.fused.engine import FusedLauncher, PreparedCall
from loadmaster.executor.collective.process_group import PlannedGroup
from loadmaster.executor.compiled_library import kept_library
from loadmaster.executor.compiling import BuildError, compile_shared, fingerprint_of
from loadmaster.executor.steps.user_cache import user_folder
from loadmaster.executor.torch_private.distributed import (
    backend_of,
    device_types_of,
    register_backend,
    set_default_backend,
    set_group_name,
    store_of,
)
from loadmaster.models.collective.plan import Algorithm
from loadmaster.models.collective.problem import Collective


@runtime_checkable
class LaunchEngine(Protocol):
    """An engine whose calls are launches."""

    @property
    def name(self) -> str: ...

    @property
    def launcher(self) -> FusedLauncher | None:
        """Launcher of the group, the same for all its engines. None: the engine cannot launch here."""

    def empty(self, size_bytes: int) -> tuple[torch.Tensor, int] | None:
        """Make memory that all ranks share, with its number. None: ranks share none."""

    def prepared(
        self, algorithm: Algorithm, size_bytes: int, dtype: torch.dtype | None, region: int | None = None
    ) -> PreparedCall:
        """The launches of a call; see :meth:`loadmaster.executor.collective.fused.engine.FusedEngine.prepared`."""


_LOG = logging.getLogger(__name__)
_NAME = "planned_backend"
SOURCE = Path(__file__).parent / f"{_NAME}.cpp"
_HEADERS = tuple(sorted(SOURCE.parent.glob("*.hpp")))
_LIBRARIES = ("-lc10", "-ltorch_cpu", "-ltorch_python")
_FLAGS = ("-std=c++20", "-O2", "-DNDEBUG", "-fPIC", "-shared", f"-DTORCH_EXTENSION_NAME={_NAME}")


def extension(group: dist.ProcessGroup) -> ModuleType | None:
    """Load the compiled backend on every rank of a group, or nowhere. Every rank calls it. One rank of each host
    compiles, if nothing is kept; the others take what it kept. None where a rank has no compiler or the compiler fails;
    the log says why."""
    places: list[Any] = [None] * group.size()
    dist.all_gather_object(places, _host(), group=group)
    first = places.index(places[group.rank()]) == group.rank()
    found = _module() if first else None
    dist.barrier(group)
    found = found or _module()
    said: list[Any] = [None] * group.size()
    dist.all_gather_object(said, isinstance(found, ModuleType), group=group)
    if all(said):
        assert isinstance(found, ModuleType)
        return found
    why = found if isinstance(found, str) else f"rank {said.index(False)} has none"
    _LOG.warning("Planned collectives are called through Python, several times slower than compiled: %s.", why)
    return None


@cache
def _module() -> ModuleType | str:
    """Load the module; in words why that is not possible."""
    version = fingerprint_of([SOURCE, *_HEADERS], _FLAGS, _LIBRARIES, torch.__version__, sys.version_info[:2])
    try:
        with kept_library("collective", version, f"{_NAME}.so", _make) as library:
            return _loaded(library)
    except (BuildError, ImportError, OSError) as error:
        return str(error)


def _make(target: Path) -> None:
    _LOG.info("Compiling the backend of planned collectives, once: about half a minute.")
    home_of_torch = Path(torch.__file__).parent
    include = home_of_torch / "include"
    headers = (include, include / "torch/csrc/api/include", sysconfig.get_paths()["include"])
    flags = (*_FLAGS, *(f"-I{path}" for path in headers))
    compile_shared([SOURCE], target, flags, (f"-L{home_of_torch / 'lib'}", *_LIBRARIES))


def _loaded(library: Path) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(_NAME, str(library))
    spec = importlib.util.spec_from_file_location(_NAME, library, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _host() -> tuple[str, str]:
    """Name what processes share that share a cache folder: host and folder."""
    return os.uname().nodename, str(user_folder())


Decision = tuple[str, bool, int, int, list[tuple[int, int, int, int, int]]]
"""Engine or reason; whether it is planned; bytes of input and of output; launches, as of
:attr:`loadmaster.executor.collective.fused.engine.PreparedLaunch.address`."""


def launcher_of(group: PlannedGroup) -> FusedLauncher | None:
    """Return what launches a group's planned calls; None: an engine of it does more than launch."""
    engines = [engine for entry in group.entries.values() for engine in entry.engines]
    launchers = [engine.launcher if isinstance(engine, LaunchEngine) else None for engine in engines]
    return launchers[0] if all(launchers) else None


class NativeGroup:
    """Holder of a process group whose planned calls run in C++. It is not a process group itself: one that is made in
    Python holds Python's lock while it waits for the inner one."""

    def __init__(self, name: str, planned_group: PlannedGroup, launcher: FusedLauncher, module: ModuleType) -> None:
        """Make the group; every rank of the inner group does so, with the same arguments."""
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
        by = None if root < 0 else root
        call = CollectiveCall(collective, tensor, tensor, size_bytes, [tensor], False, op, by, shared=region >= 0)
        found = self.planned_group.choose(call)
        if isinstance(found, str):
            return found, False, 0, 0, []
        entry, algorithm, engine = found
        if size_bytes % grain_bytes(entry.problem, algorithm, tensor.element_size()):
            return "does not divide", False, 0, 0, []
        assert isinstance(engine, LaunchEngine)
        made = engine.prepared(algorithm, size_bytes, tensor.dtype, None if region < 0 else region)
        return engine.name, True, made.input_bytes, made.output_bytes, [one.address for one in made.launches]
