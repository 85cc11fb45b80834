"""Selective activation checkpointing: which operators' results a block keeps, the rest being computed again.

PyTorch's own contexts keep them (``create_selective_checkpoint_contexts``). Results that the backward pass does not ask
for, such as those of a block's last product, are not kept: the first backward pass tells how many it asks for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from types import CodeType
from typing import Any

import torch
from torch import nn
from torch.torch_version import TorchVersion
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from loadmaster.executor.steps.step_graph import draws_with
from loadmaster.executor.torch_private.operators import TorchDispatchMode, schema_if_any
from loadmaster.executor.torch_private.tracing import TracingContext
from loadmaster.executor.training.layers import kind_of

Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]
"""Contexts of a checkpoint: of the forward pass, and of computing again."""
# Operator, its arguments -> whether its results are kept.
Keeps = Callable[[Any, Sequence[Any], Mapping[str, Any]], bool]

_PRODUCTS = frozenset(
    f"aten::{name}"
    for name in (
        *("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "matmul", "linear", "mkldnn_linear"),
        *("_int_mm", "_scaled_mm", "_grouped_mm", "_scaled_grouped_mm", "convolution", "_convolution"),
    )
)
# Inductor of PyTorch 2.11 fails on dropout in a selective checkpoint of dynamic shapes ("Node mm_2 was invalid, but is
# output"). There, each shape is compiled by itself.
_DYNAMIC = None if TorchVersion(torch.__version__) >= "2.13" else False
# Of PyTorch's kernels, of flex_attention, and of the kernels that packages add.
_ATTENTION = ("attention", "flash_attn")


def attention(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Keep the results of attention."""
    name = operator.name().partition(".")[0]
    return any(word in name for word in _ATTENTION) and _is_repeatable(operator, args, kwargs)


def products(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Keep the results of matrix products, convolutions and attention."""
    if operator.name().partition(".")[0] in _PRODUCTS:
        return _is_repeatable(operator, args, kwargs)
    return attention(operator, args, kwargs)


def _is_repeatable(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether to leave an operator out leaves everything else as it is: it writes to no argument, and draws no
    random numbers, so that those drawn after it stay the same."""
    schema = schema_if_any(operator)
    if schema is None:
        return True
    if schema.is_mutable or draws_with(operator, args, kwargs):
        return False
    # Kernels of packages have no tag that says that they draw.
    names = [argument.name for argument in schema.arguments]
    at = names.index("dropout_p") if "dropout_p" in names else len(names)
    return not kwargs.get("dropout_p", args[at] if at < len(args) else 0.0)


class _Policy:
    """Policy for PyTorch's contexts: keep the first so many results of those that a rule keeps; None: all of them."""

    def __init__(self, keeps: Keeps, most: int | None) -> None:
        self._keeps, self._most = keeps, most
        self._seen = {False: 0, True: 0}  # PyTorch 2.11 asks again when it computes again

    def __call__(self, of: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if not self._keeps(operator, args, kwargs):
            return CheckpointPolicy.PREFER_RECOMPUTE
        self._seen[of.is_recompute] += 1
        is_kept = self._most is None or self._seen[of.is_recompute] <= self._most
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE


def _contexts(policy: _Policy) -> Any:
    return create_selective_checkpoint_contexts(policy)  # type: ignore[no-untyped-call, unused-ignore]


def compile_block(block: nn.Module) -> Callable[..., Any]:
    """Compile a block's forward pass, which keeps all that its backward pass reads."""
    forward = block.forward

    def run(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    run.__code__ = _code_of(run.__code__, kind_of(block), None)
    return torch.compile(run)


def compiled_with(block: nn.Module, keeps: Keeps, otherwise: Callable[[], Contexts]) -> Callable[..., Any]:
    """Compile a block's forward pass with its checkpoint, which the compiler sees: it keeps what the rule says, where
    the backward pass asks for it. A block that is not one graph is checkpointed under other contexts, and its parts are
    compiled within: contexts that keep results do not see those of a compiled function."""
    forward = block.forward

    def contexts() -> Contexts:
        return _contexts(_Policy(keeps, None)) if TracingContext.try_get() else otherwise()

    def run(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)

    run.__code__ = _code_of(run.__code__, kind_of(block), keeps)
    return torch.compile(run, dynamic=_DYNAMIC)


@cache
def _code_of(code: CodeType, _: Hashable, __: Keeps | None) -> CodeType:
    """Copy code for blocks of one kind, some formats being those of copies, and a rule. PyTorch counts compilations of
    a code object, and runs it eagerly from the eighth on, or once it could not be compiled: for all who share it."""
    return code.replace()


class KeptResults:
    """Results of a block that are kept, run by run. Nothing is kept before a backward pass has told what it asks for:
    so a first step takes no more than checkpointing does."""

    def __init__(self, keeps: Keeps) -> None:
        self._keeps = keeps
        self._asked: int | None = None  # the first so many results are asked for

    def contexts(self) -> Contexts:
        """Make the contexts of one run: for the forward pass, and for computing again."""
        keeping, giving = _contexts(_Policy(self._keeps, self._asked or 0))
        # Hooks see them like other saved tensors. PyTorch 2.14 reads it, and warns where it is not said.
        keeping.respect_saved_tensors_hooks = True
        return keeping, giving if self._asked is not None else self._counting(giving)

    @contextlib.contextmanager
    def _counting(self, giving: AbstractContextManager[Any]) -> Iterator[None]:
        with giving, _Count(self._keeps) as count:
            try:
                yield
            finally:
                self._asked = count.number


class _Count(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode that counts the operators whose results a rule keeps."""

    supports_higher_order_operators = True

    def __init__(self, keeps: Keeps) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._keeps, self.number = keeps, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operator."""
        kwargs = kwargs or {}
        self.number += self._keeps(func, args, kwargs)
        return func(*args, **kwargs)
