"""Joint graphs to try implementations on, and a way to put one implementation into a graph and run it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import aot_module, make_boxed_func
from torch._functorch.partitioners import default_partition

from loadmaster.executor.memory.implementations.norms import Recompute
from loadmaster.executor.memory.implementations.passes import run_passes
from loadmaster.executor.memory.implementations.registry import BackwardAlternative


def joint_graph(module: nn.Module, *inputs: Tensor) -> fx.GraphModule:
    """The joint forward-backward graph that AOTAutograd makes of the module."""
    captured: list[fx.GraphModule] = []

    def keep(joint: fx.GraphModule, *args: Any, **options: Any) -> Any:
        captured.append(joint)
        return default_partition(joint, *args, **options)

    def run(graph: fx.GraphModule, _: Any) -> Any:
        return make_boxed_func(graph.forward)

    aot_module(module, fw_compiler=run, bw_compiler=run, partition_fn=keep)(*inputs)
    return captured[0]


def arguments(module: nn.Module, inputs: Sequence[Tensor], tangents: Sequence[Tensor]) -> tuple[Any, Any]:
    """What a joint graph is called with."""
    state = [*module.parameters(), *module.buffers()]
    return [t.detach() for t in (*state, *inputs)], list(tangents)


def substitute(joint: fx.GraphModule, alternative: BackwardAlternative) -> tuple[fx.GraphModule, int]:
    """The graph with the alternative at all of its sites, and how many there are."""
    graph = fx.Graph()
    new: dict[fx.Node, fx.Node] = {}
    sites = {site.backward: site for site in alternative.sites(joint)}
    encoded: dict[fx.Node, fx.Node] = {}
    for node in joint.graph.nodes:
        if node in sites:
            new[node] = alternative.emit(graph, sites[node], new.__getitem__, encoded.get(node))
        else:
            new[node] = graph.node_copy(node, new.__getitem__)
        for backward, site in sites.items():
            if site.parent is node:
                encoded[backward] = alternative.encode(graph, site, new.__getitem__)
    graph.eliminate_dead_code()
    graph.lint()
    graph.set_codegen(joint.graph._codegen)
    return fx.GraphModule(joint, graph), len(sites)


def recomputed(joint: fx.GraphModule, recompute: Recompute) -> fx.GraphModule:
    """The graph in which every reader of the recomputed result reads one that was computed again."""
    graph = fx.Graph()
    new: dict[fx.Node, fx.Node] = {}
    for node in joint.graph.nodes:
        new[node] = graph.node_copy(node, new.__getitem__)
        if node is max(recompute.sources):
            new[recompute.node] = recompute.emit(graph, new.__getitem__)
    graph.set_codegen(joint.graph._codegen)
    graph.eliminate_dead_code()
    return fx.GraphModule(joint, graph)


def flat(result: Any) -> list[Tensor]:
    """The tensors among a joint graph's outputs."""
    return [t for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, Tensor)]


def prepared_step(step: Callable[..., Tensor]) -> tuple[Callable[..., Tensor], list[str]]:
    """The step compiled eagerly from its prepared joint graph, and the operators of that graph once it has run."""
    operators: list[str] = []

    def split(joint: fx.GraphModule, *args: Any, **options: Any) -> Any:
        prepared = run_passes(joint)
        operators.extend(str(n.target) for n in prepared.graph.nodes if n.op == "call_function")
        return default_partition(prepared, *args, **options)

    def run(graph: fx.GraphModule, _: Any) -> Any:
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=run, bw_compiler=run, partition_fn=split)
    torch._dynamo.reset()
    return torch.compile(step, backend=backend, fullgraph=True, dynamic=False), operators
