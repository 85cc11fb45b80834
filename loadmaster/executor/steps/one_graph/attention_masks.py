"""Attention masks whose memory layout keeps PyTorch from its fused kernels, laid out so that the kernels take them.

None of them reads a mask whose keys are not side by side, as some are that were expanded or permuted: such a call of
``scaled_dot_product_attention`` holds all scores, for the backward pass as well. transformers' BERT and T5 give such
masks. They are copied to another layout, which takes little compared with the scores.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx


def lay_out_masks(module: fx.GraphModule) -> None:
    """Lay out again the attention masks of Dynamo's graph whose keys are not contiguous."""
    attention = torch.nn.functional.scaled_dot_product_attention
    found = False
    for node in module.graph.find_nodes(op="call_function", target=attention):
        mask = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
        value = mask.meta.get("example_value") if isinstance(mask, fx.Node) else None
        if not isinstance(value, Tensor) or value.dim() == 0 or value.stride(-1) == 1:
            continue
        with module.graph.inserting_before(node):
            laid_out = _with_keys_side_by_side(module.graph, mask, value)
        # Not elsewhere: other readers of the mask may depend on its layout.
        node.replace_input_with(mask, laid_out)
        found = True
    if found:
        module.recompile()


def _with_keys_side_by_side(graph: fx.Graph, mask: fx.Node, value: Tensor) -> fx.Node:
    """Copy a mask with its keys contiguous; one that is the same for all heads, or for the whole batch, only once."""
    node = mask
    for dimension in range(value.dim() - 1):
        if value.stride(dimension) == 0 and not value.requires_grad:
            node = graph.call_method("narrow", (node, dimension, 0, 1))
    return graph.call_method("expand_as", (graph.call_method("contiguous", (node,)), mask))
