"""Vector instructions of the processor, found out early and all at once.

Before Inductor writes its first loop for the processor it compiles and loads a program for each set of vector
instructions, and some for parts of one, one after another. For DeBERTa, whose scale is a tensor on the CPU, that is
most of what torch.compile takes. Here it begins when a step is known to compute anything on the processor, each set in
a thread of its own, and is over before the step is compiled.
"""

from __future__ import annotations

import functools
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import patch

from torch import fx

from loadmaster.executor.steps.step_graph import tensors
from loadmaster.executor.torch_private.inductor import cpu_vec_isa

logger = logging.getLogger(__name__)


def ask_ahead(module: fx.GraphModule) -> None:
    """Begin to find out, once a process, if this graph of Dynamo's computes anything on the processor."""
    if computes_on_processor(module):
        _asked()


def settle() -> None:
    """Wait for what was begun: PyTorch does not ask for one set of instructions from two threads."""
    if _asked.cache_info().currsize:
        _asked().join()


def computes_on_processor(module: fx.GraphModule) -> bool:
    """Return whether an operator of this graph of Dynamo's makes a tensor on the processor."""
    made = (n.meta.get("example_value") for n in module.graph.nodes if n.op.startswith("call_"))
    return any(t.device.type == "cpu" for value in made for t in tensors(value))


@functools.cache
def _asked() -> threading.Thread:
    thread = threading.Thread(target=_ask, name="vector instructions", daemon=True)
    thread.start()
    return thread


def _ask() -> None:
    """Fill PyTorch's own cache of the processor's vector instructions."""
    answers: dict[Any, bool] = {}
    check_build = cpu_vec_isa.VecISA.check_build

    def once(isa: cpu_vec_isa.VecISA, code: str) -> bool:
        asked = (str(isa), code)
        if asked not in answers:
            answers[asked] = check_build(isa, code)
        return answers[asked]

    try:
        present = cpu_vec_isa.x86_isa_checker()
        sets = [s for s in cpu_vec_isa.supported_vec_isa_list if all(flag in present for flag in str(s).split())]
        with patch.object(cpu_vec_isa.VecISA, "check_build", once), ThreadPoolExecutor(len(sets) or 1) as threads:
            list(threads.map(bool, sets))
            cpu_vec_isa.valid_vec_isa_list()
    except Exception as error:  # noqa: BLE001 - of a compiler, or of a PyTorch that asks in another way
        logger.info("the processor's vector instructions are asked for when they are needed: %s", error)
