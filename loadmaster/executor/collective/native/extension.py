"""The compiled backend: made once, kept in the user's cache folder, and loaded as a Python module.

It belongs to one release of PyTorch and of Python, which the name of its folder stands for: an old one is not found.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import logging
import os
import sys
import sysconfig
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from loadmaster.executor.compiling import BuildError, compile_shared, fingerprint_of
from loadmaster.executor.kept_library import kept_library
from loadmaster.executor.steps.user_cache import user_folder

_LOG = logging.getLogger(__name__)
_NAME = "planned_backend"
SOURCE = Path(__file__).parent / f"{_NAME}.cpp"
_HEADERS = tuple(sorted(SOURCE.parent.glob("*.hpp")))
_LIBRARIES = ("-lc10", "-ltorch_cpu", "-ltorch_python")
_FLAGS = ("-std=c++20", "-O2", "-DNDEBUG", "-fPIC", "-shared", f"-DTORCH_EXTENSION_NAME={_NAME}")


def extension(group: dist.ProcessGroup) -> ModuleType | None:
    """Load the compiled backend on every rank of a group, or nowhere. Every rank calls it.

    One rank of each host compiles, if nothing is kept; the others take what it kept.

    Returns:
        the module; None where a rank has no compiler or the compiler fails. The log says why.
    """
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
