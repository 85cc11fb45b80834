"""List of the attributes of PyTorch that Loadmaster replaces, for a time or for good: what, where, why.

Each replacement stands in the module of its idea. Most are set for a block by
:func:`~loadmaster.executor.steps.one_graph.replaced_attributes.patched`.
``tests/executor/torch_private/test_workarounds.py`` fails when PyTorch no longer needs one.
"""

from __future__ import annotations

from typing import NamedTuple


class Replaced(NamedTuple):
    """Attribute of PyTorch that has another value for a time.

    Attributes:
        attribute: with its owner and module.
        by: module of Loadmaster, below ``loadmaster.executor``, that has the replacement.
        why: what PyTorch does without it.
        has_test: a test fails when it may go. The others need a GPU, several processes or the compiler.
        optional: some versions from 2.11 to 2.14 lack the attribute.
    """

    attribute: str
    by: str
    why: str
    has_test: bool = False
    optional: bool = False


_LEAVES = "steps.one_graph.dynamo_changes"
_DRAWS = "steps.drawn_once"
_VARIABLES = "torch._dynamo.variables"
_NO_LEAF = "Dynamo refuses to make a leaf of a tensor inside a graph."
_PAGES = "PyTorch gives addresses away past its dispatcher, of memory that a pager has moved."

REPLACED = (
    Replaced(f"{_VARIABLES}.tensor.TensorVariable.method_requires_grad_", _LEAVES, _NO_LEAF, has_test=True),
    Replaced(f"{_VARIABLES}.builtin.SetAttrBuiltinVariable._call_setattr", _LEAVES, _NO_LEAF, True, optional=True),
    Replaced(f"{_VARIABLES}.builtin.BuiltinVariable.call_setattr", _LEAVES, _NO_LEAF, True, optional=True),
    Replaced(f"{_VARIABLES}.torch.TorchInGraphFunctionVariable.call_function", _LEAVES, _NO_LEAF, has_test=True),
    Replaced(
        f"{_VARIABLES}.tensor.TensorVariable.tp_methods",
        _LEAVES,
        "From 2.14 on a table has both methods of tensors that are followed otherwise.",
        has_test=True,
        optional=True,
    ),
    Replaced(
        f"{_VARIABLES}.builtin.BuiltinVariable.call_function_handler_cache",
        _LEAVES,
        "Dynamo would keep a replaced method for what others compile, and the one before it for us.",
        has_test=True,
    ),
    Replaced(
        f"{_VARIABLES}.tensor.TensorVariable.method_tolist",
        "steps.one_graph.dynamo_changes",
        "Dynamo does not know what is in torch.arange(2, 4).",
        has_test=True,
    ),
    Replaced(
        "torch.nn.modules.transformer._detect_is_causal_mask",
        "steps.one_graph.dynamo_changes",
        "nn.Transformer branches on the values of its mask, which breaks the graph.",
        has_test=True,
    ),
    Replaced(
        "torch._functorch.compile_utils.rand_ops",
        _DRAWS,
        "Two equal random draws are merged into one, unless their operator is in a list that is not complete.",
        has_test=True,
    ),
    Replaced(
        "torch._functorch.partitioners.choose_saved_values_set",
        _DRAWS,
        "Under a memory budget the partition draws random numbers again (PyTorch issue 190758), and chooses nodes of "
        "several results, which cannot be saved.",
        has_test=True,
    ),
    Replaced(
        "torch.autograd.graph.disable_saved_tensors_hooks",
        "torch_private.autograd",
        "torch.func refuses to run under hooks on saved tensors, also under those that could step aside.",
        has_test=True,
    ),
    Replaced(
        "torch._inductor.async_compile.AsyncCompile._wait_futures",
        "memory.run.backends",
        "Inductor waits for the kernels of one graph before it lowers the next.",
        optional=True,
    ),
    Replaced(
        "torch._inductor.codegen.wrapper.EfficientPeakEstimate.__init__",
        "memory.run.backends",
        "Inductor knows the sizes of buffers, and reuses them, only where it reorders a graph.",
    ),
    Replaced(
        "torch._inductor.cpu_vec_isa.VecISA.check_build",
        "memory.fit.ahead.vector_isas",
        "Inductor compiles the same test program for several sets of vector instructions, one after another.",
    ),
    Replaced(
        "torch.distributed.tensor.DTensor._op_dispatcher._allow_implicit_replication",
        "torch_private.sharded_tensors",
        "implicit_replication is over when the backward pass runs.",
    ),
    Replaced(
        "torch.distributed.P2POp.__init__",
        "torch_private.distributed",
        "Batches of sends are one call of NCCL only on a group of PyTorch's own type.",
    ),
    Replaced("torch.Tensor.data_ptr", "placement.pager.raw_access", _PAGES),  # and what else _OF_TENSORS there lists
    Replaced("torch.UntypedStorage.data_ptr", "placement.pager.raw_access", _PAGES),  # and _OF_STORAGES
    Replaced("torch.serialization._save", "placement.pager.raw_access", _PAGES),
    Replaced("torch.serialization._legacy_save", "placement.pager.raw_access", _PAGES),
)
