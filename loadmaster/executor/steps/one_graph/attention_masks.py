"""Attention whose mask keeps PyTorch from its fused kernels, though they would take it if it lay in memory otherwise.

None of them reads a mask whose keys are not side by side, as some are that were expanded or permuted: such a call of
``scaled_dot_product_attention`` holds all scores, for the backward pass as well. transformers' BERT and T5 give such
masks. They are laid out anew, which takes little beside the scores.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx


def lay_out_masks(module: fx.GraphModule) -> None:
    """Lay out the masks of attention in Dynamo's graph, where they need it."""
    attention = torch.nn.functional.scaled_dot_product_attention
    found = False
    for node in module.graph.find_nodes(op="call_function", target=attention):
        mask = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
        value = mask.meta.get("example_value") if isinstance(mask, fx.Node) else None
        if not isinstance(value, Tensor) or value.dim() == 0 or value.stride(-1) == 1:
            continue
        with module.graph.inserting_before(node):
            laid_out = _with_keys_side_by_side(module.graph, mask, value)
        # Not elsewhere: what else reads the mask may see where its numbers lie.
        node.replace_input_with(mask, laid_out)
        found = True
    if found:
        module.recompile()


def _with_keys_side_by_side(graph: fx.Graph, mask: fx.Node, value: Tensor) -> fx.Node:
    """A mask that is the same for all heads, or for the whole batch, is laid out once."""
    node = mask
    for dimension in range(value.dim() - 1):
        if value.stride(dimension) == 0 and not value.requires_grad:
            node = graph.call_method("narrow", (node, dimension, 0, 1))
    return graph.call_method("expand_as", (graph.call_method("contiguous", (node,)), mask))
