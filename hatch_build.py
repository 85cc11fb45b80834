"""Compiles the index into wheels, where a C++ compiler is at hand. Without one the wheel is pure and installs all the
same: the index then compiles itself at its first use, or runs in numpy.
"""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOM = "loadmaster/executor/index"


class IndexBuildHook(BuildHookInterface[Any]):
    """Adds the shared library to a wheel and names the platform that it is for."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        # An editable install compiles at the first use, and again when the sources change.
        if version == "editable":
            return
        building = _building(Path(self.root))
        self._folder = tempfile.TemporaryDirectory()
        library = Path(self._folder.name) / building.LIBRARY_NAME
        try:
            building.compile_library(library)
        except building.BuildError as error:
            self.app.display_warning(f"a wheel without the compiled index: {error}")
            return
        build_data["pure_python"] = False
        # It is called through ctypes: any Python will do, but no other system or processor.
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
        build_data["force_include"][str(library)] = f"{ROOM}/core/{building.LIBRARY_NAME}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._folder.cleanup()


def _building(root: Path) -> ModuleType:
    """The module that compiles, by itself: what the package needs is not installed while it is built."""
    _loaded("loadmaster.executor.compiling", root / "loadmaster/executor/compiling.py")
    return _loaded("loadmaster.executor.index.building", root / ROOM / "building.py")


def _loaded(name: str, path: Path) -> ModuleType:
    """A module from its file, found by that name from here on; the packages around it are not imported."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
