"""Measuring operators in a process of their own, which they may end.

A kernel that is given what it does not expect ends its process: a device-side assertion, an address that is not there.
What is not known to be safe is therefore run in a child. It answers operator by operator; where it dies, the operator
that it was at stays without an answer, and another child goes on with the next.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from loadmaster.executor.costs.calls import Call
from loadmaster.executor.costs.time_cache import OperatorMeasurement
from loadmaster.executor.costs.traffic import value_of
from loadmaster.executor.torch_private.operators import OpOverload, defining_modules, overload_name_of, schema_of

BEGIN_S = 90.0
"""Time that a child may take to import PyTorch and to reach the device, in addition to measuring."""

MOST_CHILDREN = 3
"""Children that may end early before the operators that are left stay unmeasured: each takes seconds."""

Found = OperatorMeasurement | str


@dataclass(frozen=True)
class Sent:
    """A :class:`Call` as a child gets it: ``name`` is ``namespace::name``; importing one of ``modules`` defines it."""

    name: str
    overload: str
    modules: tuple[str, ...]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: Any


@dataclass(frozen=True)
class Request:
    """Calls that a child measures, each a pickled :class:`Sent`, and settings to measure them under: the options of
    :class:`~loadmaster.executor.costs.profiled.Profiler`, the precision of products, and TF32 for convolutions."""

    device: str
    options: Mapping[str, bool]
    float32: str
    tf32: bool
    calls: Sequence[bytes]


def measured_apart(
    nodes: Sequence[fx.Node], device: torch.device, limit_s: float, options: Mapping[str, bool]
) -> list[Found]:
    """Measure each operator in another process; return its measurement, or in words why there is none. All children
    together have ``limit_s``, and each :data:`BEGIN_S` more. ``options`` are the profiler's ``compiled`` and
    ``channels_last``."""
    found: dict[int, Found] = {}
    calls: dict[int, bytes] = {}
    for n, node in enumerate(nodes):
        try:
            calls[n] = pickle.dumps(_sent(node))
        except Exception as error:  # noqa: BLE001 - any object may refuse to be pickled, and raise anything
            found[n] = f"it cannot be sent to a process of its own ({type(error).__name__})"
    if device.type == "cuda":
        torch.cuda.empty_cache()  # leaves the memory to the child
    for _ in range(MOST_CHILDREN):
        waiting = [n for n in calls if n not in found]
        if not waiting:
            break
        began = time.monotonic()
        answers, ended = _asked([calls[n] for n in waiting], device, limit_s, options)
        limit_s -= max(0.0, time.monotonic() - began - BEGIN_S)
        found.update(zip(waiting, answers, strict=False))
        if len(answers) < len(waiting):
            found[waiting[len(answers)]] = f"the process that measured it {ended}"
    return [found.get(n, "the processes that measured others like it ended") for n in range(len(nodes))]


def _asked(
    calls: Sequence[bytes], device: torch.device, limit_s: float, options: Mapping[str, bool]
) -> tuple[list[Found], str]:
    """Ask one child: return its answers, as far as it came, and how it ended."""
    precision, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    request = Request(str(device), options, precision, convolutions, calls)
    # It finds what this process finds: an empty entry is where it runs.
    paths = dict.fromkeys(path or os.getcwd() for path in sys.path)
    with tempfile.TemporaryFile() as said:
        try:
            status = subprocess.run(
                [sys.executable, "-P", "-m", "loadmaster.executor.costs.apart_child"],
                input=pickle.dumps(request),
                stdout=said,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                timeout=max(limit_s, 0.0) + BEGIN_S,
                check=False,
            ).returncode
            ended = f"ended with status {status}"
        except subprocess.TimeoutExpired:
            ended = f"did not end within {max(limit_s, 0.0) + BEGIN_S:.0f} s"
        said.seek(0)
        return [_answer(line) for line in said.read().splitlines(keepends=True) if line.endswith(b"\n")], ended


def _answer(line: bytes) -> Found:
    said = json.loads(line)
    return said if isinstance(said, str) else OperatorMeasurement(*said)


def _sent(node: fx.Node) -> Sent:
    target = node.target
    assert isinstance(target, OpOverload)
    args, kwargs = fx.node.map_arg((tuple(node.args), dict(node.kwargs)), value_of)
    call = Call.of(target, args, kwargs, value_of(node))
    name = schema_of(target).name
    return Sent(name, overload_name_of(target), _modules(name), call.args, call.kwargs, call.result)


def _modules(name: str) -> tuple[str, ...]:
    """Modules that may define an operator: those of its Python functions, and the one of its namespace's name."""
    found = [*defining_modules(name), name.partition("::")[0]]
    # PyTorch's is a wrapper around the function; the user's script must not run a second time.
    return tuple(module for module in dict.fromkeys(found) if module.partition(".")[0] not in ("torch", "__main__"))
