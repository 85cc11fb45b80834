"""Generated sources on disk, each under a name that only its content has, and their modules.

Triton reads a kernel's source from its file, and keeps what it compiled by that source; the next process, and the next
graph, find both.
"""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType

from loadmaster.executor.graph.compiled.triton.source import digest
from loadmaster.executor.steps.user_cache import user_folder
from loadmaster.models.files import write_text

# The environment variable that names the folder.
FOLDER = "LOADMASTER_KERNEL_CACHE"


@cache
def _of_this_process() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="loadmaster-kernels-")


def folder() -> Path:
    """Folder of the sources: in the user's cache, or where the environment says; temporary if that is not writable."""
    said = os.environ.get(FOLDER)
    found = Path(said) if said else user_folder("graph_kernels")
    try:
        found.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(_of_this_process().name)
    return found if os.access(found, os.W_OK) else Path(_of_this_process().name)


def written(text: str, where: Path) -> Path:
    """The file of a source, whole: written in one step, and again if it holds anything else."""
    path = where / f"kernel_{digest(text)}.py"
    try:
        if path.read_text(encoding="utf-8") == text:
            return path
    except (OSError, UnicodeDecodeError):
        pass
    write_text(path, text, FOLDER)
    return path


@cache
def imported(text: str) -> ModuleType:
    """The module of a source."""
    path = written(text, folder())
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    exec(compile(text, str(path), "exec"), module.__dict__)
    return module
