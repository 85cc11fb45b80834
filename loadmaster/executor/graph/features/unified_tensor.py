"""A tensor in host memory that GPU kernels read in place: PyTorch-Direct's unified tensor, on today's PyTorch.

It is an ordinary host tensor to whoever asks (``device`` is "cpu"). Operators that read rows of it (an index,
``index_select``, ``embedding``, ``gather``) run as a kernel that fetches the rows over the link. Any other operator
computes where :func:`placement` says, by its schema: views stay views, what writes to the tensor runs on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.graph.features.canaries import TRIED_FROM_BYTES, reads_in_place
from loadmaster.executor.graph.features.gather import expect_in_range, gather_rows, rows_are_contiguous
from loadmaster.executor.graph.features.host_memory import host_empty
from loadmaster.executor.graph.features.row_reads import OPERATORS, row_read
from loadmaster.executor.torch_private.operators import make_subclass, no_torch_function, pytree, schema_of

_HOST = torch.device("cpu")
Affinity = Literal["gpu", "host"]


class Placement(NamedTuple):
    """Placement of one operator: on the GPU its result is a CUDA tensor, on the host a unified one of the affinity."""

    computes_on: Literal["gpu", "host"]
    affinity: Affinity


def expect_affinity(affinity: str) -> None:
    """Raise InputError unless the affinity is "gpu" or "host"."""
    if affinity not in ("gpu", "host"):
        raise InputError("affinity", affinity, "is no affinity", 'Say "gpu" or "host".')


def placement(affinities: Sequence[Affinity], cuda_tensors: int, cpu_tensors: int) -> Placement:
    """Place an operator on unified tensors and its result, after PyTorch-Direct ([Wu24], section 4.4.3).

    The affinity of the unified operands, at least one, decides, unless other operands leave no choice: a GPU cannot
    read ordinary host memory, a processor cannot read a GPU's.

    | affinity of the unified operands | CUDA tensors | CPU tensors that are not scalars | computes on | result |
    | --- | --- | --- | --- | --- |
    | any | one or more | none | GPU | CUDA tensor |
    | any | one or more | one or more | InputError, as PyTorch refuses it | |
    | at least one "gpu" | none | none | GPU | CUDA tensor |
    | at least one "gpu" | none | one or more | host | unified, affinity "gpu" |
    | all "host" | none | any number | host | unified, affinity "host" |

    Scalars (tensors without dimensions) in host memory go anywhere, as in PyTorch. So do the tensors that an index
    operator takes its indices from: they are brought to where it computes. Views of a unified tensor are unified
    wherever they are taken, and what writes to one computes on the host.
    """
    affinity: Affinity = "gpu" if "gpu" in affinities else "host"
    if cuda_tensors and cpu_tensors:
        problem = "have no device that reads them all, unified tensors or not"
        remedy = "Bring the CPU tensors to the GPU, or make them unified."
        raise InputError("operands", f"{cuda_tensors} CUDA tensors, {cpu_tensors} CPU tensors", problem, remedy)
    if cuda_tensors or (affinity == "gpu" and not cpu_tensors):
        return Placement("gpu", affinity)
    return Placement("host", affinity)


class UnifiedTensor(Tensor):
    """Host memory that a device reads in place. Made by :func:`unified`, :func:`unified_empty`, :func:`unified_file`.

    Reading is asynchronous, as everything on a CUDA device: write to the memory only when what was read is there.

    Attributes:
        cpu_view: the same memory as an ordinary host tensor.
        result_device: where the GPU's results are, unless other operands are elsewhere; the host if there is no GPU.
        debug: whether every index is held against the number of rows, which makes the host wait for the GPU.
        writable: False for the memory of a file.
    """

    __torch_function__ = no_torch_function

    is_unified = True
    cpu_view: Tensor
    affinity: Affinity
    result_device: torch.device
    debug: bool
    writable: bool
    _in_place: dict[tuple[int, bool], bool]

    def __new__(
        cls,
        host: Tensor,
        *,
        affinity: Affinity,
        result_device: torch.device,
        debug: bool = False,
        in_place: bool | None = None,
        writable: bool = True,
    ) -> UnifiedTensor:
        self: UnifiedTensor = make_subclass(cls, host)
        self.cpu_view, self.affinity, self.result_device = host, affinity, result_device
        self.debug, self.writable = debug, writable
        self._in_place = {} if in_place is None else {_tried_as(host): in_place}
        return self

    @property
    def in_place(self) -> bool:
        """True if the GPU reads rows itself; False where it was found not to read them right, or to be slower. Found
        out when a table is made, and once more for each other length of its views' rows, small or large enough to time.
        """
        sort = _tried_as(self.cpu_view)
        if sort not in self._in_place:
            self._in_place[sort] = is_read_in_place(self.cpu_view, self.result_device)
        return self._in_place[sort]

    def with_affinity(self, affinity: Affinity) -> UnifiedTensor:
        """The same memory with another affinity; nothing moves."""
        expect_affinity(affinity)
        return self._like(self.cpu_view, affinity)

    def rows(self, index: Tensor, shape: Sequence[int] | None = None) -> Tensor:
        """Rows of the tensor for the GPU: on the device of the index, or the result device if that is the host.
        ``index`` is int32 or int64, of any shape; ``shape`` is the result's, if not that of the index and a row."""
        where = index.device if index.is_cuda else self.result_device
        flat = index.to(where).reshape(-1)
        if self.debug:
            expect_in_range(flat, self.shape[0])
        found: Tensor = gather_rows(self.cpu_view, flat, self.in_place)
        return found.view(*(shape if shape is not None else (*index.shape, *self.shape[1:])))

    @property
    def requires_grad(self) -> bool:
        """True if autograd follows the tensor: only where it is the result of an operator that autograd follows."""
        return bool(Tensor.requires_grad.__get__(self))  # type: ignore[attr-defined]

    @requires_grad.setter
    def requires_grad(self, requires_grad: bool) -> None:
        self.requires_grad_(requires_grad)

    def requires_grad_(self, requires_grad: bool = True) -> UnifiedTensor:
        """Raise InputError for True: gradients of features in host memory are not computed."""
        if requires_grad:
            raise no_gradient(self)
        return self

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return (
            f"UnifiedTensor(shape={list(self.shape)}, dtype={self.dtype}, affinity={self.affinity!r}, "
            f"result_device={str(self.result_device)!r})"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> UnifiedTensor:
        """Copy the tensor into unified memory of its own, which is writable."""
        host = host_empty(self.shape, self.dtype, self.result_device).copy_(self.cpu_view)
        made = self._like(host)
        made.writable = True
        memo[id(self)] = made
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle the tensor as an ordinary host tensor, in files and for other processes."""
        return self.cpu_view.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in OPERATORS and isinstance(args[0], UnifiedTensor):
            return _read(func, args, kwargs)
        return _run(func, args, kwargs)

    def _like(self, host: Tensor, affinity: Affinity | None = None) -> UnifiedTensor:
        """Make a unified tensor with the attributes of this one; both share what trials found."""
        made = UnifiedTensor(
            host,
            affinity=self.affinity if affinity is None else affinity,
            result_device=self.result_device,
            debug=self.debug,
            writable=self.writable,
        )
        made._in_place = self._in_place
        return made


def is_read_in_place(host: Tensor, device: torch.device) -> bool:
    """Return whether the device reads rows of host memory itself; True where its kernel does not apply."""
    fits = device.type == "cuda" and host.dim() > 0 and rows_are_contiguous(host)
    return reads_in_place(host, device) if fits else True


def _tried_as(host: Tensor) -> tuple[int, bool]:
    """Key of a trial: bytes of a row, and whether there are enough rows to time them."""
    return host.shape[1:].numel() * host.element_size(), host.numel() * host.element_size() >= TRIED_FROM_BYTES


def no_gradient(tensor: Tensor) -> InputError:
    """The error for features that should have a gradient."""
    problem = "cannot be had for features in host memory"
    remedy = "Keep a table that is trained in nn.Embedding; take tensor.detach() where it is not."
    return InputError("requires_grad", f"True, shape {list(tensor.shape)}", problem, remedy)


def _read(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run an operator that reads rows of a unified tensor."""
    table: UnifiedTensor = args[0]
    # Loops and not tree_map, which takes as long as all the rest: a GPU that waits for its next batch waits for this.
    plain = [[_plain(t) for t in a] if isinstance(a, (list, tuple)) else _plain(a) for a in args]
    indices = [t for a in plain[1:] for t in (a if isinstance(a, list) else [a]) if isinstance(t, Tensor)]
    if placement([table.affinity], sum(i.is_cuda for i in indices), 0).computes_on == "host":
        return _unified(func(*plain, **_host(kwargs)), table, table.affinity)
    read = row_read(func, plain)
    if read is not None:
        rows_of = table if read.table is table.cpu_view else table._like(read.table)
        return rows_of.rows(read.index, read.shape)
    where = next((i.device for i in indices if i.is_cuda), table.result_device)
    return func(*_moved(plain, _HOST), **_moved(_host(kwargs), _HOST)).to(where)


def _run(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run any other operator, by the rules of placement."""
    schema = schema_of(func)
    operands = [t for t in pytree.tree_flatten((list(args), kwargs))[0] if isinstance(t, Tensor)]
    tables = [t for t in operands if isinstance(t, UnifiedTensor)]
    plain = [t for t in operands if not isinstance(t, UnifiedTensor)]
    if func.is_view:
        return pytree.tree_map(
            lambda t: tables[0]._like(t) if isinstance(t, Tensor) else t, func(*_host(args), **_host(kwargs))
        )
    written = _written(schema, args, kwargs)
    if any(isinstance(t, UnifiedTensor) for t in written):
        _expect_writable(written)
        return _same(func(*_host(args), **_host(kwargs)), tables)
    if kwargs.get("device") is not None:
        return func(*_host(args), **_host(kwargs))
    returns = schema.returns
    place = _place(tables, plain, returns=len(returns), tensors=any("Tensor" in str(r.type) for r in returns))
    if place.computes_on == "host":
        made = func(*_host(args), **_host(kwargs))
        return pytree.tree_map(
            lambda t: t if any(t is p for p in plain) else _unified(t, tables[0], place.affinity), made
        )
    where = next((t.device for t in plain if t.is_cuda), tables[0].result_device)
    if any(argument.name == "device" for argument in schema.arguments):
        return func(*_host(args), **_host(kwargs), device=where)
    return func(*_sent(args, where), **_sent(kwargs, where))


def _place(tables: Sequence[UnifiedTensor], plain: Sequence[Tensor], *, returns: int, tensors: bool) -> Placement:
    cuda = sum(t.is_cuda for t in plain)
    if returns and not tensors and not cuda:
        return Placement("host", "host")  # a number or a fact: nothing needs to move for it
    return placement([t.affinity for t in tables], cuda, sum(t.dim() > 0 and not t.is_cuda for t in plain))


def _written(schema: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            found += [t for t in pytree.tree_flatten(value)[0] if isinstance(t, Tensor)]
    return found


def _expect_writable(written: Sequence[Tensor]) -> None:
    for tensor in written:
        if isinstance(tensor, UnifiedTensor) and not tensor.writable:
            problem = "lies in a file that was opened for reading, and cannot be written to"
            remedy = "Copy it into memory first: unified(tensor.cpu_view)."
            raise InputError("tensor", f"shape {list(tensor.shape)}", problem, remedy)


def _unified(value: Any, like: UnifiedTensor, affinity: Affinity) -> Any:
    """Make a result on the host a unified tensor; return scalars and values of other types as they are."""
    if not isinstance(value, Tensor) or not value.dim():
        return value
    if like.result_device.type == "cuda":
        value = host_empty(value.shape, value.dtype, like.result_device).copy_(value)
    made = like._like(value, affinity)
    made.writable = True
    return made


def _same(value: Any, tables: Sequence[UnifiedTensor]) -> Any:
    """Results that are the operands themselves, as in-place operators return them."""
    own = {id(t.cpu_view): t for t in tables}
    return pytree.tree_map(lambda t: own.get(id(t), t), value)


def _host(value: Any) -> Any:
    """Unified tensors as the ordinary host tensors that they are."""
    return pytree.tree_map(_plain, value)


def _plain(value: Any) -> Any:
    return value.cpu_view if isinstance(value, UnifiedTensor) else value


def _moved(value: Any, where: torch.device) -> Any:
    return pytree.tree_map(lambda t: t.to(where) if isinstance(t, Tensor) else t, value)


def _sent(value: Any, where: torch.device) -> Any:
    """Unified tensors copied to a device, the others as they are."""
    return pytree.tree_map(lambda t: t.cpu_view.to(where) if isinstance(t, UnifiedTensor) else t, value)
