"""Cross entropy over many classes in chunks of rows, so that all logits are never there in full precision.

:func:`later` gives a head's result as :class:`Logits`, which are computed when somebody reads them. Until then they
note slices of rows, new shapes, casts, elementwise functions of plain numbers, and last that classes come second.
``cross_entropy`` of them computes a chunk of rows at a time, and keeps the gradient of the head's result, in its own
precision. From it come the gradients of hidden states and weights, by the matrix products of plain PyTorch. Any other
function gets the logits themselves.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from loadmaster.executor.torch_private.operators import pytree
from loadmaster.executor.training.points import OwnForward

# Logits of a chunk: some temporaries of 128 MiB in single precision.
CHUNK_ELEMENTS = 1 << 25

_SINGLE = (torch.float32, torch.float64)
_KNOWN = (*_SINGLE, torch.bfloat16)
_OF_DEVICE = {"device", "is_cuda", "is_cpu"}
_PROPERTIES = {"shape", "dtype", "ndim", "layout", "is_sparse", "is_quantized"}
_METADATA = {
    *(Tensor.size, Tensor.dim, Tensor.ndimension, Tensor.numel, Tensor.nelement, Tensor.__len__),
    *(Tensor.is_floating_point, Tensor.is_complex, Tensor.element_size),
}
_TURNING = {Tensor.transpose, torch.transpose, Tensor.permute, torch.permute}
_RESHAPING = {Tensor.view, Tensor.reshape, torch.reshape, Tensor.flatten, torch.flatten}
_ELEMENTWISE = {
    *(Tensor.float, Tensor.double, Tensor.bfloat16, Tensor.to, Tensor.contiguous, Tensor.tanh, torch.tanh),
    *(Tensor.mul, torch.mul, Tensor.div, torch.div, Tensor.__mul__, Tensor.__rmul__, Tensor.__truediv__),
}
_CROSS_ENTROPY = signature(F.cross_entropy)


@dataclass(eq=False)
class Head:
    """One call of a linear layer whose result is not computed yet; ``on_loss`` is called for each loss in chunks."""

    layer: nn.Linear
    hidden: Tensor
    autocast: torch.dtype | None
    on_loss: Callable[[], None]
    derived: list[weakref.ref[Logits]] = field(default_factory=list)

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the layer's result."""
        return self.autocast or self.hidden.dtype

    def result(self) -> Tensor:
        """Compute it as the layer does."""
        with torch.enable_grad(), torch.autocast(self.hidden.device.type, self.autocast, enabled=bool(self.autocast)):
            return F.linear(self.hidden, self.layer.weight, self.layer.bias)

    def compute_all(self) -> None:
        """Compute all that was derived from it, before somebody writes to any of that."""
        for one in self.derived:
            logits = one()
            if logits is not None:
                logits.values()


class Logits(Tensor):
    """Result of a head [..., classes], which is computed when it is read. To PyTorch's own functions it is a tensor
    without memory."""

    head: Head
    rows: Tensor  # hidden states [..., width] of these logits
    steps: tuple[Callable[[Tensor], Tensor], ...]  # elementwise functions on the way
    is_turned: bool  # classes are the second of three dimensions, where cross_entropy has them
    compute: Callable[[], Tensor]
    computed: Tensor | None

    def values(self) -> Tensor:
        """Compute them, once."""
        if self.computed is None:
            self.computed = self.compute()
        return self.computed

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Note what can wait, and compute the logits for everything else."""
        kwargs = kwargs or {}
        of = func.__self__.__name__ if getattr(func, "__name__", "") == "__get__" else None
        if of in _PROPERTIES or func in _METADATA:
            return super().__torch_function__(func, types, args, dict(kwargs))  # type: ignore[no-untyped-call]
        if of in _OF_DEVICE:
            return func(args[0].rows)
        if of == "requires_grad":
            return True
        if torch.compiler.is_compiling():
            raise RuntimeError("logits that are not computed yet cannot be compiled")
        found = None
        if func is F.cross_entropy:
            found = _cross_entropy(*args, **kwargs)
        elif args and isinstance(args[0], Logits) and args[0].computed is None:
            found = _noted(args[0], func, args[1:], kwargs)
        if found is not None:
            return found
        every = [one for one in pytree.tree_leaves((args, dict(kwargs))) if isinstance(one, Logits)]
        if _writes(func, kwargs):
            for one in every:
                one.head.compute_all()
        args, kwargs = pytree.tree_map(_computed, (args, dict(kwargs)))
        return func(*args, **kwargs)


class Heads:
    """Linear layers outside of the blocks that have more results than inputs. Their losses run in chunks where
    ``is_asked`` says so when they run; ``losses`` counts those that did."""

    def __init__(self, model: nn.Module, blocks: Iterable[nn.Module], is_asked: Callable[[], bool]) -> None:
        self._is_asked, self.losses = is_asked, 0
        inside = {module for block in blocks for module in block.modules()}
        linear = [m for m in model.modules() if type(m) is nn.Linear and m not in inside]
        self.layers = [layer for layer in linear if layer.out_features > layer.in_features]
        self._handles = [OwnForward(layer) for layer in self.layers]
        for layer in self.layers:
            layer.forward = partial(self._run, layer, layer.forward)  # type: ignore[method-assign]

    def remove(self) -> None:
        """Give the layers their own ``forward`` back."""
        for handle in self._handles:
            handle.remove()

    def _run(self, layer: nn.Linear, forward: Callable[..., Tensor], /, *args: Any, **kwargs: Any) -> Tensor:
        found = later(layer, args[0], self._count) if len(args) == 1 and self._is_asked() else None
        return forward(*args, **kwargs) if found is None else found

    def _count(self) -> None:
        self.losses += 1


def later(layer: nn.Linear, hidden: Tensor, on_loss: Callable[[], None]) -> Logits | None:
    """Return the layer's result, to be computed when it is read; None: its loss cannot run in chunks.

    Float16 has too small a range for gradients that are not scaled yet. Where there are as many classes as hidden
    states are wide, a slice of classes could be taken for one of rows.
    """
    device = hidden.device.type
    autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    head = Head(layer, hidden, autocast, on_loss)
    if head.dtype not in _KNOWN or layer.in_features == layer.out_features or not torch.is_grad_enabled():
        return None
    return _logits(head, hidden, head.dtype, (), head.result)


def _logits(
    head: Head,
    rows: Tensor,
    dtype: torch.dtype,
    steps: tuple[Callable[[Tensor], Tensor], ...],
    compute: Callable[[], Tensor],
    *,
    is_turned: bool = False,
) -> Logits:
    shape = [*rows.shape[:-1], head.layer.out_features]
    if is_turned:
        shape[1:] = reversed(shape[1:])
    found = torch.empty(shape, dtype=dtype, device="meta").as_subclass(Logits)
    vars(found).update(head=head, rows=rows, steps=steps, compute=compute, computed=None, is_turned=is_turned)
    head.derived.append(weakref.ref(found))
    return found


def _computed(one: Any) -> Any:
    return one.values() if isinstance(one, Logits) else one


def _writes(func: Any, kwargs: Mapping[str, Any]) -> bool:
    """Return whether a function writes to one of its arguments."""
    name = getattr(func, "__name__", "")
    is_in_place = name.endswith("_") and not name.endswith("__")
    return is_in_place or name.startswith("__i") or name in ("__setitem__", "__set__") or "out" in kwargs


def _noted(logits: Logits, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Logits | None:
    """Note a function of logits; None: they must be computed for it."""
    if logits.is_turned:
        return None
    rows, width = logits.rows, logits.rows.shape[-1]
    shape = (*rows.shape[:-1], logits.head.layer.out_features)
    like = torch.empty(shape, dtype=logits.dtype, device="meta")
    steps = logits.steps

    def compute() -> Tensor:
        return cast(Tensor, func(logits.values(), *args, **kwargs))

    if func is Tensor.__getitem__ and _is_mask(args[0]) and args[0].dim() < rows.dim():
        return _logits(logits.head, rows[args[0]], like.dtype, steps, compute)
    if any(isinstance(one, Tensor | str | torch.device) for one in pytree.tree_leaves((args, dict(kwargs)))):
        return None
    if func in _TURNING:
        turned = func(like, *args, **kwargs)
        if like.dim() != 3 or (turned.shape, turned.stride()) != (like.mT.shape, like.mT.stride()):
            return None
        return _logits(logits.head, rows, like.dtype, steps, compute, is_turned=True)
    if func is Tensor.__getitem__:
        like, rows = like[args[0]], rows[args[0]]
    elif func in _RESHAPING:
        like = func(like, *args, **kwargs)
        if like.dim() and like.shape[-1] == shape[-1]:
            rows = rows.reshape(*like.shape[:-1], width)
    elif func in _ELEMENTWISE:
        like = func(like, *args, **kwargs)
        steps = (*steps, lambda chunk: func(chunk, *args, **kwargs))
    else:
        return None
    if (*rows.shape[:-1], shape[-1], width) != (*like.shape, rows.shape[-1]) or like.dtype not in _KNOWN:
        return None
    return _logits(logits.head, rows, like.dtype, steps, compute)


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype is torch.bool


def _cross_entropy(*args: Any, **kwargs: Any) -> Tensor | None:
    """Compute the loss of logits in chunks; None: not as it is asked for."""
    asked = _CROSS_ENTROPY.bind(*args, **kwargs)
    asked.apply_defaults()
    of = asked.arguments
    logits, target, weight = of["input"], of["target"], of["weight"]
    if not isinstance(logits, Logits) or logits.computed is not None or not (logits.dim() == 2 or logits.is_turned):
        return None
    rows = logits.rows
    is_of_classes = type(target) is Tensor and target.dtype is torch.int64 and target.shape == rows.shape[:-1]
    if not is_of_classes or of["reduction"] not in ("mean", "sum"):
        return None
    rows, target = rows.flatten(0, -2), target.flatten()
    if of["size_average"] is not None or of["reduce"] is not None:
        return None
    if weight is not None and (type(weight) is not Tensor or weight.requires_grad):
        return None
    device = rows.device.type
    # Losses in low precision, rounded in each chunk, are not what plain PyTorch's are.
    if logits.dtype not in _SINGLE and not torch.is_autocast_enabled(device):
        return None
    head = logits.head
    head.on_loss()

    def loss_of(chunk: Tensor, target: Tensor) -> Tensor:
        for step in logits.steps:
            chunk = step(chunk)
        settings = {name: of[name] for name in ("weight", "ignore_index", "label_smoothing")}
        return F.cross_entropy(chunk, target, reduction="sum", **settings)

    count: Tensor | None = None
    if of["reduction"] == "mean":
        counted = target != of["ignore_index"]
        count = counted.sum() if weight is None else weight[target.where(counted, 0)].where(counted, 0).sum()
    layer = head.layer
    return cast(
        Tensor,
        _Chunks.apply(rows, layer.weight, layer.bias, target, count, head.dtype, loss_of),
    )


class _Chunks(torch.autograd.Function):
    """Loss of rows [n, width] through a linear layer [classes, width]."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        count: Tensor | None,
        dtype: torch.dtype,
        loss_of: Callable[[Tensor, Tensor], Tensor],
    ) -> Tensor:
        """Compute the loss, and the gradient of the layer's result as if the loss's were 1."""
        inputs, factor = rows.detach().to(dtype), weight.detach().to(dtype)
        added = None if bias is None else bias.detach().to(dtype)
        gradients = torch.empty(len(rows), len(weight), dtype=dtype, device=rows.device)
        total = torch.zeros((), device=rows.device)
        length = max(1, CHUNK_ELEMENTS // len(weight))
        for n in range(0, len(rows), length):
            part = slice(n, n + length)
            with torch.enable_grad():
                logits = F.linear(inputs[part], factor, added).requires_grad_()
                loss = loss_of(logits, target[part])
                gradients[part] = torch.autograd.grad(loss if count is None else loss / count, logits)[0]
            total = total + loss.detach()
        ctx.save_for_backward(inputs, weight, gradients)
        ctx.formats = rows.dtype, None if bias is None else bias.dtype
        return total if count is None else total / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_loss: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients of rows, weight and bias."""
        inputs, weight, gradients = ctx.saved_tensors
        of_rows, of_bias = ctx.formats

        def scaled(part: Tensor) -> Tensor:
            # In the loss's precision: in a lower one, a third is another number.
            return (part.to(of_loss.dtype) * of_loss).to(part.dtype)

        wanted = ctx.needs_input_grad
        found = (
            scaled(gradients @ weight.to(gradients.dtype)).to(of_rows) if wanted[0] else None,
            (gradients.t() @ scaled(inputs)).to(weight.dtype) if wanted[1] else None,
            scaled(gradients.sum(0)).to(of_bias) if of_bias is not None and wanted[2] else None,
        )
        return (*found, None, None, None, None)
