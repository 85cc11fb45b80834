"""``MODULE:FACTORY``: the user's function that makes a model, called so that its errors are reported as the user's, by
one message that names exception and place; the command's ``--verbose`` shows the whole traceback.
"""

from __future__ import annotations

import contextlib
import importlib
import site
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import loadmaster
from loadmaster.errors import InputError, LoadmasterError

FIELD = "MODULE:FACTORY"
_REMEDY = "Give MODULE:FUNCTION, for example examples.resnet50:small."
_MEND = "Mend it; --verbose shows the whole traceback."
# Code that is not the user's: of installed packages, of Python, and of this package.
_OTHERS = tuple(
    {
        str(Path(loadmaster.__file__).parent),
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *site.getsitepackages(),
        site.getusersitepackages(),
        "<",  # of Python's own importer, or generated
    }
)


def load_factory(spec: str) -> Callable[[], Any]:
    """Import the function that ``MODULE:FUNCTION`` names; modules of the current directory are found. Raises InputError
    if there is no such module or function, or the module's own code fails."""
    module_name, _, function_name = spec.partition(":")
    if not module_name or not function_name:
        raise InputError(FIELD, spec, "is not MODULE:FUNCTION", _REMEDY)
    if module_name.endswith(".py") or "/" in module_name:
        remedy = f"Give {Path(module_name).stem}:{function_name}, in the folder of that file."
        raise InputError(FIELD, spec, "names a file, not a module", remedy)
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    with users_code(spec, entirely=True):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if not f"{module_name}.".startswith(f"{error.name}."):
                raise
            raise InputError(FIELD, spec, f"cannot be imported: {error}", _REMEDY) from None
    function = getattr(module, function_name, None)
    if not callable(function):
        raise InputError(FIELD, spec, f"{module_name} has no function {function_name}", _REMEDY)
    factory: Callable[[], Any] = function
    return factory


def call_factory(spec: str, device: torch.device) -> tuple[Any, Any, Any]:
    """Make the model, the batch and the loss (None where the factory gives none) on the given device. Raises InputError
    if the factory cannot be used, or fails."""
    factory = load_factory(spec)
    with device, users_code(spec, entirely=True):
        made = factory()
    if not isinstance(made, tuple) or len(made) not in (2, 3):
        remedy = "Return (model, batch, loss)."
        raise InputError(FIELD, type(made).__name__, f"{spec} returned no tuple of two or three", remedy)
    return made if len(made) == 3 else (*made, None)


def device_named(name: str, flag: str = "--device") -> torch.device:
    """Return the device that a flag names; raises InputError if there is no such device, or it is not present."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise InputError(flag, name, f"cannot be used here: {reason}", "Use a device that is present.") from None
    return device


@contextlib.contextmanager
def users_code(spec: str, *, entirely: bool = False) -> Iterator[None]:
    """Turn an error of the user's code within the block into an InputError that names exception and place. Errors of
    other code pass, unless nothing but the user's code, and what it calls, runs here (``entirely``)."""
    try:
        yield
    except LoadmasterError:
        raise
    except (Exception, SystemExit) as error:
        place = place_of(error)
        if place is None and not entirely:
            raise
        said = f"{type(error).__name__}: {error}".strip().removesuffix(":")
        where = "" if place is None else f", at {place}"
        raise InputError(FIELD, spec, f"raised {said}{where}", _MEND) from error


def place_of(error: BaseException) -> str | None:
    """The innermost line of the user's own code that an exception went through; None where it went through none."""
    if isinstance(error, SyntaxError) and error.filename is not None and not error.filename.startswith(_OTHERS):
        return f"{_shown(error.filename)}:{error.lineno}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(_OTHERS):
            return f"{_shown(frame.filename)}:{frame.lineno} in {frame.name}"
    return None


def _shown(path: str) -> str:
    with contextlib.suppress(ValueError):
        return str(Path(path).relative_to(Path.cwd()))
    return path


def report(error: LoadmasterError, *, verbose: bool) -> int:
    """Write an error to stderr, with its cause's traceback if ``verbose``; return the exit status."""
    if verbose and error.__cause__ is not None:
        traceback.print_exception(error.__cause__)
    sys.stderr.write(f"error: {error}\n")
    return error.exit_status
