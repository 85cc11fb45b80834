"""What runs the two graphs: eagerly, in their own order, or through Inductor."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from torch import fx
from torch.fx.graph import _BoxedCodeGen

Runner = Callable[[list[Any]], Any]


def eager(module: fx.GraphModule, _inputs: Sequence[Any]) -> Runner:
    """Run the graph node by node in its order.

    The arguments come as one list that is emptied on entry, and every name dies at its last use: a saved activation
    is freed as soon as the backward pass has read it for the last time.
    """
    module.graph.set_codegen(_BoxedCodeGen())
    module.recompile()
    forward = module.forward

    def run(arguments: list[Any]) -> Any:
        return forward(arguments)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def inductor(module: fx.GraphModule, inputs: Sequence[Any]) -> Runner:
    """Compile the graph with Inductor, after its own decompositions and with its reordering for memory off."""
    from torch._guards import detect_fake_mode
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    is_backward = any("tangents" in str(n.target) for n in module.graph.find_nodes(op="placeholder"))
    # Constants that decompositions create must be fake like the inputs.
    fake_mode = detect_fake_mode(inputs)
    with contextlib.nullcontext() if fake_mode is None else fake_mode:
        lowered = make_fx(module, decomposition_table=select_decomp_table())(*inputs)
    with config.patch(reorder_for_peak_memory=False, reorder_for_locality=False):
        runner: Runner = compile_fx_inner(lowered, list(inputs), is_backward=is_backward)
    return runner
