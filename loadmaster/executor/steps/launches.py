"""Direct launches of compiled kernels, without the checks that Inductor makes before each launch.

Inductor's object around a Triton kernel asks at every launch whether the kernel is still to be tuned, dumped or traced:
a notable part of a step of small kernels, which takes as long as the host needs to launch them. From PyTorch 2.13 on
the object itself skips that from its second launch on. Before, the module that Inductor wrote is given the tuned
kernel's launcher in the object's place. The profiler shows such a kernel on the device, not the call on the host.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

from loadmaster.executor.torch_private.inductor import LAUNCHES_FAST, CachingAutotuner, PyCodeCache, is_launcher_static


class Launched:
    """Stand-in for a kernel in a module that Inductor wrote, whose ``run`` is the kernel's launcher."""

    __slots__ = ("run",)

    def __init__(self, run: Callable[..., None]) -> None:
        self.run = run


@contextlib.contextmanager
def noting_modules(modules: list[ModuleType]) -> Iterator[None]:
    """Note the modules that Inductor writes for graphs, or finds written, inside the block; each once."""
    known = len(PyCodeCache.modules)
    yield
    modules += [m for m in PyCodeCache.modules[known:] if hasattr(m, "call") and m not in modules]


def launch_directly(modules: Iterable[ModuleType]) -> None:
    """Launch the kernels of these modules directly from here on; the modules must have run once."""
    if LAUNCHES_FAST:
        return
    for module in modules:
        for name, held in list(vars(module).items()):
            if (launcher := _launcher_of(held)) is not None:
                setattr(module, name, Launched(launcher))


def _launcher_of(held: Any) -> Callable[..., None] | None:
    """Launcher of a tuned kernel; None for other objects, and for kernels whose launch does more than start them."""
    if type(held) is not CachingAutotuner or len(held.launchers) != 1:
        return None
    if held.triton_interpret or held.dump_launch_params or held.dump_launch_tensors:
        return None
    launcher = held.launchers[0]
    is_tuned = getattr(launcher.config, "found_by_coordesc", False)
    if held.inductor_meta.get("coordinate_descent_tuning", False) and not is_tuned:
        return None
    # Others may need memory that Triton asks for at a launch, or have their binary stored.
    return launcher if is_launcher_static(launcher) else None
