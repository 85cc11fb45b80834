"""Graph passes run on a joint graph before planning and, identically, before a plan is applied.

They put operators in place that hold less: dropout from a seed, attention's as well, linear plus cross-entropy in
chunks, clamps whose backward reads the output, the largest convolutions' backward in two,
losses whose scalar keeps nothing else, gradients of slices side by side, what is drawn before all else.
Every pass is deterministic, so that a plan made on one process's graph fits another's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from torch import fx

from loadmaster.errors import InputError
from loadmaster.executor.memory.implementations.activations import clamp_from_output
from loadmaster.executor.memory.implementations.attention import seed_attention
from loadmaster.executor.memory.implementations.convolution import split_convolution_backward
from loadmaster.executor.memory.implementations.cross_entropy_pass import chunk_cross_entropy
from loadmaster.executor.memory.implementations.draws_first import draw_first
from loadmaster.executor.memory.implementations.dropout import seed_dropout
from loadmaster.executor.memory.implementations.joined_slices import join_slices
from loadmaster.executor.memory.implementations.reduced_losses import reduce_losses
from loadmaster.executor.steps.drawn_once import EACH_DRAW_ITS_OWN
from loadmaster.executor.steps.one_graph.replaced_attributes import patched
from loadmaster.executor.torch_private.inductor import eliminate_common_subexpressions
from loadmaster.executor.torch_private.tracing import codegen_of

PASSES: dict[str, Callable[[fx.Graph], None]] = {
    "clamp_from_output": clamp_from_output,
    "seeded_dropout": seed_dropout,
    "seeded_attention": seed_attention,
    "linear_cross_entropy": chunk_cross_entropy,
    "split_convolution_backward": split_convolution_backward,
    "reduced_losses": reduce_losses,
    "joined_slices": join_slices,
    "draws_first": draw_first,
}
"""Passes by name, in the order they run. Each changes the graph in place."""


def run_passes(joint: fx.GraphModule, exclude: Collection[str] = ()) -> fx.GraphModule:
    """The joint graph with every pass applied, except those named in ``exclude``. The argument is left as it is.

    Raises:
        InputError: a name in ``exclude`` is not a pass.
    """
    for name in exclude:
        if name not in PASSES:
            raise InputError("exclude", name, "is not a pass", f"Choose from: {', '.join(PASSES) or 'none'}.")
    prepared = fx.GraphModule(joint, _without_repetitions(joint.graph))
    for name, run in PASSES.items():
        if name not in exclude:
            run(prepared.graph)
    prepared.graph.lint()
    prepared.recompile()
    return prepared


def _without_repetitions(graph: fx.Graph) -> fx.Graph:
    """A copy in which nothing is computed twice from the same values: torch.compile's partition has it so, too.

    Autocast, for one, casts what three linear layers read three times.
    """
    with patched(EACH_DRAW_ITS_OWN):
        copied = eliminate_common_subexpressions(graph)
    copied.output_node().meta = dict(graph.output_node().meta)
    copied.set_codegen(codegen_of(graph))
    return copied
