"""The dispatch mode of the pager: no operator runs before what it needs is on the device.

Before an operator runs, it is tried on tensors without memory: so room is made for its results. It is tried once for
each signature; then what it really allocated is remembered.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from loadmaster.executor.placement.operands import (
    NUMBER_BYTES,
    OneByOne,
    is_view,
    operands,
    reads_all,
    storage_bytes,
    tensors_in,
)
from loadmaster.executor.placement.pager.memory import Page, PagedMemory
from loadmaster.executor.placement.pager.steps import Ran, Steps
from loadmaster.executor.torch_private.autograd import storage_key
from loadmaster.executor.torch_private.fake_tensors import FakeTensorMode
from loadmaster.executor.torch_private.operators import pytree

Signature = Hashable
_HASHABLE = (int, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
logger = logging.getLogger(__name__)


class Foresight:
    """Bytes of the new storages that a call makes, by its signature."""

    def __init__(self) -> None:
        self._known: dict[Signature, int] = {}
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)

    def signature(
        self, key: Hashable, given: Sequence[Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Signature:
        """Signature of a call, equal for calls that allocate the same; ``key`` has shape and type of each tensor."""
        others = _others(args)
        if kwargs:
            others += [*kwargs, *_others(tuple(kwargs.values()))]
        return (key, tuple([tensor.stride() for tensor in given]), tuple(others))

    def bytes_of(self, signature: Signature, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        """Bytes that the call will allocate; 0 where that depends on values."""
        found = self._known.get(signature)
        if found is None:
            found = self._known[signature] = self._tried(func, args, kwargs)
        return found

    def learn(self, signature: Signature, size_bytes: int) -> None:
        """Remember the bytes that such a call did allocate."""
        self._known[signature] = size_bytes

    def _tried(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        given: set[int] = set()
        if any(isinstance(leaf, torch.UntypedStorage) for leaf in args):
            return 0

        def fake(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            made = torch.empty_strided(tuple(leaf.shape), leaf.stride(), dtype=leaf.dtype, device=leaf.device)
            given.add(storage_key(made.untyped_storage()))
            return made

        try:
            with self._mode:
                args, kwargs = pytree.tree_map(fake, (tuple(args), dict(kwargs)))
                result = func(*args, **kwargs)
            made = {storage_key(t.untyped_storage()): t.untyped_storage().nbytes() for t in tensors_in(result)}
        except Exception:  # noqa: BLE001 - whatever an operator raises without values, the call itself will say
            return 0
        return sum(size for key, size in made.items() if key not in given)


def _others(values: Sequence[Any]) -> list[Hashable]:
    """Arguments that are not tensors, with the places of tensors. The value of a float decides no size."""
    found: list[Hashable] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(Tensor)
        elif isinstance(value, (list, tuple)):
            found += ["[", *_others(value), "]"]
        elif isinstance(value, float):
            found.append(float)
        else:
            found.append(value if isinstance(value, _HASHABLE) else repr(value))
    return found


class PagerMode(OneByOne):  # type: ignore[no-untyped-call]
    """Dispatch mode that has every operand on the device, whose storages have pages, when its operator runs."""

    def __init__(self, device: torch.device, memory: PagedMemory, steps: Steps) -> None:
        super().__init__()
        self._device, self._memory, self._steps = device, memory, steps
        self._foresight = Foresight()
        self._looks = True

    def page(self, tensor: Tensor) -> Page | None:
        """Return the page of a tensor that is, or would be, on the device; None if it has no page."""
        if tensor.layout is not torch.strided:
            return None
        storage = tensor.untyped_storage()
        page = self._memory.page(storage)
        if page is None and tensor.device == self._device and storage.nbytes() > NUMBER_BYTES:
            self._memory.make_room(storage.nbytes())
            page = self._memory.add(storage)
        return page

    def _view(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a view: it needs no memory, but PyTorch checks most views against the size of the storage."""
        try:
            return func(*args, **kwargs)
        except RuntimeError:
            pages = {
                page for tensor in tensors_in((*args, *kwargs.values())) if (page := self.page(tensor)) is not None
            }
            if all(page.resident for page in pages):
                raise
            self._memory.ensure(pages, pages, 0, func)
            return func(*args, **kwargs)

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call the operator with its operands on the device."""
        if is_view(func):
            return self._view(func, args, kwargs)
        memory, steps = self._memory, self._steps
        if self._looks:
            self._look_for_compiled()
        given = tensors_in(args)
        if kwargs:
            given += tensors_in(tuple(kwargs.values()))
        pages = [self.page(tensor) for tensor in given]
        key = (func, tuple([(tensor.shape, tensor.dtype) for tensor in given]))
        expected = steps.expect(key)
        if reads_all(func):
            used, written = {page for page in pages if page is not None}, set()
            read = used
        else:
            reads, writes = operands(func, args, kwargs, self._size_of)
            read = {page for tensor in reads if (page := self.page(tensor)) is not None}
            written = {page for tensor in writes if (page := self.page(tensor)) is not None}
            used = read | written
        signature = None if expected is not None else self._foresight.signature(key, given, args, kwargs)
        foreseen = (
            expected.new_bytes if expected is not None else self._foresight.bytes_of(signature, func, args, kwargs)
        )
        prefetcher = steps.prefetcher if memory.was_short else None
        if prefetcher is not None:
            prefetcher.starts(key, pages, read)
        memory.ensure(used, read, foreseen, func)
        if prefetcher is not None:
            prefetcher.bring(used, foreseen)
        for page in written:
            memory.will_be_written(page)
        result, clock = steps.timed(lambda: func(*args, **kwargs))
        memory.touch(used)
        born = self._births(result, foreseen)
        if prefetcher is not None:
            prefetcher.made(born)
        made = sum([page.size_bytes for page in born if page is not None])
        if signature is not None and made != foreseen:
            self._foresight.learn(signature, made)
        if expected is not None or clock is not None:
            steps.ran(Ran(func, args, kwargs, result, key, given, pages, born, made, clock), expected)
        return result

    def _look_for_compiled(self) -> None:
        """Warn once, in the first step, that nothing is compiled: PyTorch does not compile under a dispatch mode."""
        self._looks = not self._steps.stats
        frame = sys._getframe()
        while self._looks and (below := frame.f_back) is not None:
            frame = below
            # The call of what torch.compile returned. It runs the function as it is, and goes on doing so.
            if (frame.f_globals.get("__name__"), frame.f_code.co_name) == (
                "torch._dynamo.eval_frame",
                "compile_wrapper",
            ):
                self._looks = False
                logger.warning(
                    "under a pager, what torch.compile made runs operator by operator, since kernels that it generates"
                    " go past PyTorch's dispatcher; call torch.compiler.reset() after the pager to compile again"
                )

    def _births(self, result: Any, foreseen: int) -> list[Page | None]:
        """Add pages for the result's storages that are new, and return them."""
        found: list[Page | None] = []
        for tensor in tensors_in(result):
            if tensor.layout is not torch.strided:
                continue
            storage = tensor.untyped_storage()
            if self._memory.page(storage) is not None or tensor.device != self._device:
                continue
            if storage.nbytes() <= NUMBER_BYTES:
                continue
            foreseen -= storage.nbytes()
            if foreseen < 0:
                self._memory.counts.unforeseen += 1
                self._memory.make_room(storage.nbytes())
            found.append(self._memory.add(storage))
        return found

    def _size_of(self, tensor: Tensor) -> int:
        page = self.page(tensor)
        return storage_bytes(tensor) if page is None else page.size_bytes
