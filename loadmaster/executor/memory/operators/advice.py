"""Advice on what a model's own code costs and no plan can put right, found in its graph, with the remedy.

A plan decides about the operators that a model was written in. Some ways to write one cost more than memory can buy
back, and ``torch.compile`` rewrites some of the first and the last on its own:

- attention as two products and a softmax, whose scores a fused kernel never holds (:func:`written_out_attention`);
- PyTorch's own attention called with what none of its fused kernels takes, as a mask that is trained, on a CPU
  (:func:`attention_in_full`);
- matrix products whose rows start between multiples of 16 bytes, for which libraries have slow kernels only
  (:func:`unaligned_products`; the chunked loss aligns its own).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import fx

from loadmaster.executor.costs.traffic import flops
from loadmaster.executor.memory.implementations.cross_entropy import ALIGNED_BYTES
from loadmaster.executor.steps.one_graph.graph_breaks import place_of
from loadmaster.executor.steps.step_graph import StepGraph, tensor_bytes

aten = torch.ops.aten

_BATCHED_PRODUCTS = (aten.bmm.default, aten.baddbmm.default)
_PRODUCTS = (aten.mm.default, aten.addmm.default, *_BATCHED_PRODUCTS)
# Smaller products are over before their kernel matters: ten microseconds on a GPU of today.
_WORTH_FLOP = 1e10
_WORTH_BYTES = 1 << 20


def advice(step_graph: StepGraph, *, on_gpu: bool) -> list[str]:
    """Sentences for whoever wrote the model, of a step that is to run ``on_gpu`` or not; empty for most."""
    found = [*written_out_attention(step_graph), *attention_in_full(step_graph)]
    return [*found, *(unaligned_products(step_graph) if on_gpu else ())]


def written_out_attention(step_graph: StepGraph) -> Iterator[str]:
    """Advice on softmaxes between two batched products."""
    found = [
        node
        for node in step_graph.module.graph.find_nodes(op="call_function", target=aten._softmax.default)
        if _reaches(node, lambda n: n.all_input_nodes) and _reaches(node, lambda n: step_graph.forward & n.users.keys())
    ]
    scores_bytes = sum(tensor_bytes(node.meta["val"]) for node in found)
    if scores_bytes >= _WORTH_BYTES:
        yield (
            f"attention is written out in {_places(found)}. Its scores take {_mib(scores_bytes)}, kept or computed "
            "again; torch.nn.functional.scaled_dot_product_attention computes the same without them."
        )


def attention_in_full(step_graph: StepGraph) -> Iterator[str]:
    """Advice on calls of ``scaled_dot_product_attention`` that PyTorch writes out itself."""
    found = list(step_graph.module.graph.find_nodes(op="call_function", target=aten._safe_softmax.default))
    scores_bytes = sum(tensor_bytes(node.meta["val"]) for node in found)
    if scores_bytes >= _WORTH_BYTES:
        yield (
            f"scaled_dot_product_attention holds its scores in {_places(found)}: they take {_mib(scores_bytes)}, kept "
            "or computed again, since no kernel that does without them takes these arguments. On a CPU a mask that is "
            "trained is such a one. torch.nn.attention.sdpa_kernel around the call, with one backend, says why."
        )


def _places(found: Sequence[fx.Node]) -> str:
    count = "1 place" if len(found) == 1 else f"{len(found)} places, the first"
    return f"{count}{place_of(found[0])}"


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:,.0f} MiB"


def unaligned_products(step_graph: StepGraph) -> Iterator[str]:
    """Advice on large products with a matrix whose rows are not a multiple of 16 bytes."""
    sizes: dict[tuple[int, torch.dtype], list[fx.Node]] = {}
    for node in step_graph.module.graph.nodes:
        if node.target in _PRODUCTS and flops(node) >= _WORTH_FLOP:
            for value in (node.meta["val"], *(n.meta["val"] for n in node.all_input_nodes)):
                if value.dim() > 1 and (row := _odd_row(value)):
                    sizes.setdefault((row, value.dtype), []).append(node)
    for (row, dtype), nodes in sizes.items():
        each, kind = ALIGNED_BYTES // dtype.itemsize, str(dtype).removeprefix("torch.")
        yield (
            f"{len(set(nodes))} large matrix products have rows of {row:,} {kind}, the first"
            f"{place_of(nodes[0])}. They run several times slower than with a multiple of {each}: make that size "
            f"{-(-row // each) * each:,}, and leave what is added unused."
        )


def _odd_row(matrix: torch.Tensor) -> int:
    """Elements from one row (or column) of a matrix to the next, if not a multiple of 16 bytes; else 0."""
    step = max(matrix.stride()[-2:])
    return step if step * matrix.element_size() % ALIGNED_BYTES else 0


def _reaches(softmax: fx.Node, neighbours: Callable[[fx.Node], Iterable[fx.Node]]) -> bool:
    """Return whether there is a batched product on this side, with nothing in between but work on each score."""
    count = softmax.meta["val"].numel()
    seen, ahead = {softmax}, [softmax]
    while ahead:
        for node in neighbours(ahead.pop()):
            if node.target in _BATCHED_PRODUCTS:
                return True
            value = node.meta.get("val")
            if node not in seen and isinstance(value, torch.Tensor) and value.numel() == count:
                seen.add(node)
                ahead.append(node)
    return False
