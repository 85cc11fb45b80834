"""The child that runs operators which may end it: ``python -m loadmaster.executor.costs.apart_child``.

It reads a pickled request and writes a line for each operator, in JSON: ``[time_us, workspace_bytes]``, or in words why
it was not measured.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import pickle
import sys

import torch
from torch import fx

from loadmaster.executor.costs.apart import Request, Sent
from loadmaster.executor.costs.calls import Call
from loadmaster.executor.costs.profiled import Profiler
from loadmaster.executor.costs.time_cache import OperatorMeasurement


def main() -> None:
    """Answer one request: read it from standard input and write a line for each operator."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a death that is expected leaves no image of memory
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what operators print is not an answer
    request: Request = pickle.load(sys.stdin.buffer)
    torch.set_float32_matmul_precision(request.float32)
    torch.backends.cudnn.allow_tf32 = request.tf32
    device = torch.device(request.device)
    options = request.options
    profiler = Profiler(device, math.inf, compiled=options["compiled"], channels_last=options["channels_last"])
    for pickled in request.calls:
        found = _measured(pickle.loads(pickled), profiler)
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # raises where a kernel failed: then nothing else can run here
        said = found if isinstance(found, str) else [found.time_us, found.workspace_bytes]
        answers.write(json.dumps(said) + "\n")
        answers.flush()


def _measured(sent: Sent, profiler: Profiler) -> OperatorMeasurement | str:
    namespace, _, name = sent.name.partition("::")
    for module in sent.modules:
        if hasattr(getattr(torch.ops, namespace), name):
            break
        with contextlib.suppress(Exception):  # whatever a module does when it is imported
            importlib.import_module(module)
    packet = getattr(getattr(torch.ops, namespace), name, None)
    if packet is None:
        return "no module defines it that a process of its own could import; move it into one"
    call = Call(getattr(packet, sent.overload), sent.args, dict(sent.kwargs), sent.result, None)
    return profiler.run(call.node(fx.Graph()))


if __name__ == "__main__":
    main()
