"""Inductor and AOTAutograd's partition: compilers of graphs, their settings, passes and CUDA graphs.

Importing this loads the whole compiler. ``torch.compile`` is the only public way into it, and it takes a function, not
the two graphs of a step that a plan has made.
"""

from __future__ import annotations

from typing import Any

from loadmaster.executor.torch_private import needed

with needed():
    # Decompositions of random operators, which is how compiled code draws.
    from torch._decomp.decompositions_for_rng import extra_random_decomps as extra_random_decomps

    # AOTAutograd as a backend of torch.compile, with a compiler for each half.
    from torch._dynamo.backends.common import aot_autograd as aot_autograd

    # What CUDA graphs ask of a graph: which inputs it writes, and where its operators come from.
    from torch._dynamo.backends.cudagraphs import find_input_mutations as find_input_mutations
    from torch._dynamo.backends.cudagraphs import get_stack_traces as get_stack_traces

    # The partition of a joint graph, and its list of operators that are never merged (see ``patches``).
    from torch._functorch import compile_utils as compile_utils
    from torch._functorch import partitioners as partitioners

    # Description of an output that is saved for the backward pass, which AOTAutograd asks of every output.
    from torch._functorch._aot_autograd.descriptors import SavedForBackwardsAOTOutput as SavedForBackwardsAOTOutput

    # Settings of Inductor by name. ``torch.compile(options=...)`` sets them for one function, not for one graph.
    from torch._inductor import config as inductor_config

    # Vector instructions of the processor, which Inductor finds out by compiling programs.
    from torch._inductor import cpu_vec_isa as cpu_vec_isa

    # Operators by which compiled code draws from a seed.
    from torch._inductor import inductor_prims as inductor_prims

    # Sizes of buffers, and the peak that their reuse is held to (see ``patches``).
    from torch._inductor import memory as inductor_memory

    # Pool of processes that builds kernels, and modules of code that Inductor has written.
    from torch._inductor.async_compile import AsyncCompile as AsyncCompile
    from torch._inductor.codecache import PyCodeCache as PyCodeCache
    from torch._inductor.codegen import wrapper as inductor_wrapper

    # The compiler of a joint graph, and of one graph.
    from torch._inductor.compile_fx import compile_fx as compile_fx
    from torch._inductor.compile_fx import compile_fx_inner as compile_fx_inner

    # CUDA graphs of two compiled graphs that share a pool of memory.
    from torch._inductor.cudagraph_trees import cudagraphify_impl as cudagraphify_impl
    from torch._inductor.cudagraph_trees import get_manager as get_manager
    from torch._inductor.cudagraph_utils import get_placeholder_info as get_placeholder_info

    # Passes of the user's on a joint graph, with a key for Inductor's cache.
    from torch._inductor.custom_graph_pass import CustomGraphPass as CustomGraphPass
    from torch._inductor.custom_graph_pass import get_hash_for_files as get_hash_for_files

    # Inductor's table of decompositions.
    from torch._inductor.decomposition import select_decomp_table as select_decomp_table

    # Pass that turns random operators into Inductor's own.
    from torch._inductor.fx_passes.replace_random import replace_random_passes as replace_random_passes

    # The decision whether convolutions are laid out channels last.
    from torch._inductor.graph import GraphLowering as GraphLowering

    # Operators that Inductor compiles, and a way to have one called as it is.
    from torch._inductor.lowering import lowerings as lowerings
    from torch._inductor.lowering import make_fallback as make_fallback

    # Folder of Inductor's cache, for error messages.
    from torch._inductor.runtime.cache_dir_utils import cache_dir as cache_dir

    # A Triton kernel with its configurations.
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner as CachingAutotuner

    # Number of a backward graph's inputs that are saved, and the first operator that no CUDA graph takes.
    from torch._inductor.utils import count_tangents as count_tangents
    from torch._inductor.utils import get_first_incompatible_cudagraph_node as get_first_incompatible_cudagraph_node

    # Handlers of the compilation under way: the graph, and the fake mode.
    from torch._inductor.virtualized import V as V

    min_cut_partition = partitioners.min_cut_rematerialization_partition
    eliminate_common_subexpressions = compile_utils.fx_graph_cse

__all__ = ["inductor_config", "inductor_memory", "inductor_wrapper"]

LAUNCHES_FAST = hasattr(CachingAutotuner, "_build_fast_launcher")
"""Whether Inductor's kernels skip their checks from the second launch on, as from 2.13 on."""

WAIT_FOR_KERNELS = "_wait_futures"
"""Method of :class:`AsyncCompile` that waits for the kernels of one graph. Not in all versions: see its use."""


def is_launcher_static(launcher: Any) -> bool:
    """Return whether a kernel's launcher does nothing but start it; unlike those that Triton makes for each launch."""
    return bool(getattr(launcher, "_is_static", False))
