"""Graph breaks of Dynamo in a step: what it may pass over, and its errors in words that name place and remedy.

A step is one graph or it has no plan. Logging and printing inside a model compute nothing and are passed over.
Gradients that a model takes itself (``torch.autograd.grad``) are operators like others. Any other break is for the
user to mend where the line is theirs, and Dynamo's own hints say how. Where the line is a library's, the user can
change an option of the library.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import site
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import fx

from loadmaster.errors import InputError, LoadmasterError
from loadmaster.executor.steps.one_graph.replaced_attributes import patched
from loadmaster.executor.steps.step import NoLossAloneError, NoLossError, returned_instead
from loadmaster.executor.torch_private.dynamo import IGNORED_CALLS, WARNING_ONCE, dynamo_config, dynamo_errors


class UntraceableError(InputError):
    """Error for a step that is not one graph of fixed shapes: it has no plan, though it may run."""


class RecompileLimitError(UntraceableError):
    """Error for a step that has become as many graphs as Dynamo allows."""


# Methods of loggers, also those that libraries add: transformers' warning_once and warning_advice.
_LOGGING = ("debug", "info", "warning", "warn", "error", "exception", "critical", "fatal", "log")
_FUNCTIONS = (print, warnings.warn, WARNING_ONCE, *(getattr(logging, n, None) for n in _LOGGING))
_LIBRARIES = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")} | {site.getusersitepackages()}
)
_OURS = Path(__file__).parents[3]
_REWRITE = "Rewrite that line without Python that depends on tensor values, or move it out of the step."
_CHOOSE = (
    "The line is the library's. Call the model once before: libraries may set themselves up in their first call. Or "
    "look for an option that avoids the line (another attention, another experts_implementation, no cache). Or leave "
    "out of the batch what it is for (labels), and give a loss of yours on the model's output."
)


@contextlib.contextmanager
def as_one_graph(**settings: Any) -> Iterator[None]:
    """Trace inside the block without graph breaks at logging, printing and gradients that the model takes itself. Logs
    and prints appear neither in the tracing nor in planned steps. Other settings of Dynamo's hold for as long."""
    methods = tuple(pair for pair in vars(logging.Logger).items() if callable(pair[1]))
    metrics = logging.getLogger("torch._dynamo.metrics_context")
    settings |= {
        IGNORED_CALLS: getattr(dynamo_config, IGNORED_CALLS) | _logging_functions(methods),
        "trace_autograd_ops": True,
    }
    metrics.addFilter(_is_worth_logging)
    try:
        # Not ``config.patch``, which would make a class for every step, and that waits for the garbage collector.
        with patched(*((dynamo_config, key, value) for key, value in settings.items())):
            yield
    finally:
        metrics.removeFilter(_is_worth_logging)


@functools.cache
def _logging_functions(methods: tuple[tuple[str, Any], ...]) -> frozenset[Any]:
    """Functions that log or print: the known ones, and methods of loggers that libraries have added or replaced."""
    begins = tuple(f"{word}_" for word in _LOGGING)
    said = {function for name, function in methods if name in _LOGGING or name.startswith(begins)}
    return frozenset(filter(None, _FUNCTIONS)) | said


def _is_worth_logging(record: logging.LogRecord) -> bool:
    """Return False for the error that PyTorch 2.11 logs of its own metrics, which cannot hold a set of functions: its
    traceback would keep the step's tensors in memory."""
    return not (record.exc_info and isinstance(record.exc_info[1], TypeError) and "metrics" in record.getMessage())


@contextlib.contextmanager
def clear_errors(passing: type[Exception] = LoadmasterError) -> Iterator[None]:
    """Turn the tracer's errors into an :class:`InputError` that names place and remedy; Loadmaster's and ``passing``
    ones pass. The tracer's own traceback is only the ``__context__``: of hundreds of lines none is the user's."""
    try:
        yield
    except dynamo_errors.BackendCompilerFailed as error:
        if isinstance(error.inner_exception, (LoadmasterError, torch.OutOfMemoryError, passing)):
            raise error.inner_exception from None
        raise _untraceable(error.inner_exception) from None
    except dynamo_errors.FailOnRecompileLimitHit as error:
        problem = f"was compiled for {dynamo_config.recompile_limit} kinds of calls, and becomes another graph again"
        remedy = "Pad batches to a few lengths. Where their shapes are the same, look for a Python value that changes "
        remedy += "from call to call; pass it as a tensor, or fix it."
        raise RecompileLimitError("model", type(error).__name__, problem, remedy) from None
    except (
        dynamo_errors.Unsupported,
        dynamo_errors.UserError,
        dynamo_errors.TorchRuntimeError,
        dynamo_errors.InternalTorchDynamoError,
    ) as error:
        raise _untraceable(error) from None


def _untraceable(error: Exception) -> InputError:
    """Make the error for what the tracer said: place, reason and explanation in one sentence, then its hints."""
    if (returned := returned_instead(NoLossError, error)) is not None:
        remedy = "Give the batch what the model computes its loss from (labels), or give a loss of yours: "
        remedy += "lambda output, target: ... with a tuple (x, target), lambda output, batch: ... with a dict."
        return InputError("loss", returned, "the model's output holds no scalar loss", remedy)
    if (returned := returned_instead(NoLossAloneError, error)) is not None:
        remedy = "Return the loss alone, as a scalar."
        return InputError("loss", returned, "the step does not return one scalar loss", remedy)
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [type(error).__name__]
    frames = _frames(text)
    own = [place for path, place in frames if not _is_library(path) and not Path(path).is_relative_to(_OURS)]
    reasons = [lines[0], *_after(lines, "Explanation:")]
    where, remedy = "", " ".join(_after(lines, "Hint:")) or _REWRITE
    if frames:
        path, place = frames[-1]
        where = f" at {place}"
        if _is_library(path):
            called = f", called from {own[-1]}" if own else ""
            where = f" inside {_library(path)}, at {place}{called}"
            remedy = " ".join([*_after(lines, "Hint:"), _CHOOSE])
    if isinstance(error, dynamo_errors.TorchRuntimeError):  # an operator refuses its operands
        remedy = "Check shapes, types and devices of the inputs and the model: without a plan the step fails too."
    problem = f"cannot be traced as one graph{where}: {'. '.join(r.rstrip('.') for r in reasons)}"
    return UntraceableError("model", type(error).__name__, problem, remedy)


def place_of(node: fx.Node) -> str:
    """Line of the model that a node comes from, as " at ..."; empty where that is not known."""
    frames = _frames(str(node.meta.get("stack_trace", "")))
    return f" at {frames[-1][1]}" if frames else ""


def _after(lines: list[str], label: str) -> list[str]:
    return [line.removeprefix(label).strip() for line in lines if line.startswith(label)]


def _frames(trace: str) -> list[tuple[str, str]]:
    """Frames of a printed stack, outermost first: for each its path, and a line of path, line, function and code."""
    lines = [line.strip() for line in trace.splitlines() if line.strip()]
    places = [i for i, line in enumerate(lines) if line.startswith("File ")]
    return [(lines[i].split('"')[1], ": ".join(lines[i : i + 2])) for i in places if '"' in lines[i]]


def _is_library(path: str) -> bool:
    return any(Path(path).is_relative_to(folder) for folder in _LIBRARIES)


def _library(path: str) -> str:
    """Name of the package that a path of a library belongs to."""
    inside = [Path(path).relative_to(folder) for folder in _LIBRARIES if Path(path).is_relative_to(folder)]
    return min(inside, key=lambda found: len(found.parts)).parts[0].removesuffix(".py")
