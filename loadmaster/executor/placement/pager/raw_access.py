"""Access to memory that goes past PyTorch's dispatcher: addresses, NumPy, copies and files of whole storages.

Only the methods that give the memory away see it coming. So, while pages move, these methods bring the page back
first; a page whose address was given away stays. In debug mode they refuse.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from loadmaster.errors import InputError
from loadmaster.executor.placement.pager.memory import PagedMemory
from loadmaster.executor.torch_private.operators import without_dispatch_modes

# Method -> whether its caller keeps the address.
_OF_TENSORS = {"data_ptr": True, "numpy": True, "__array__": True, "__dlpack__": True, "tolist": False}
_OF_STORAGES = {
    "data_ptr": True,
    "clone": False,
    "cpu": False,
    "cuda": False,
    "tolist": False,
    "share_memory_": True,
    "__deepcopy__": False,
    "__reduce__": False,
    "_write_file": False,
}


@contextlib.contextmanager
def guarded(memory: PagedMemory, *, debug: bool) -> Iterator[None]:
    """Guard memory against raw access within the block: a page comes back first, or with ``debug`` is refused."""

    def before(what: str, keeps: bool, held: torch.Tensor | torch.UntypedStorage, *_args: Any, **_kwargs: Any) -> None:
        if isinstance(held, torch.Tensor):
            if held.layout != torch.strided:
                return
            held = held.untyped_storage()
        page = None if memory.paused else memory.page(held)
        if page is None:
            return
        if debug:
            remedy = "Use operators that PyTorch dispatches, or do it within `with pager.paused():`."
            raise InputError("pager", what, "goes past the dispatcher to memory that moves", remedy)
        with without_dispatch_modes():  # copies of the pager's own are not to be paged
            memory.ensure([page], [page], 0, what)
        if keeps:
            memory.fix(page)
            memory.will_be_written(page)

    with contextlib.ExitStack() as stack:
        for owner, methods in ((torch.Tensor, _OF_TENSORS), (torch.UntypedStorage, _OF_STORAGES)):
            for name, keeps in methods.items():
                guard = functools.partial(before, f"{owner.__name__}.{name}", keeps)
                stack.enter_context(_before(owner, name, guard))
        for name in ("_save", "_legacy_save"):
            stack.enter_context(_before(torch.serialization, name, functools.partial(_refuse_to_save, memory)))
        yield


def _refuse_to_save(memory: PagedMemory, saved: Any, *_args: Any, **_kwargs: Any) -> None:
    """Refuse to save pages that are away: a file first states the size of a storage, which would be 0."""
    pages = [memory.page(tensor.untyped_storage()) for tensor in _saved(saved)]
    if any(page is not None and not page.resident for page in pages):
        remedy = "Save copies in host memory (tensor.cpu()), save within `with pager.paused():`, or after the pager."
        raise InputError("torch.save", "a paged model", "has tensors whose memory is elsewhere", remedy)


def _saved(value: Any) -> Iterator[torch.Tensor]:
    """Tensors of what is saved; of other objects than collections and modules, all that their attributes hold."""
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, (str, bytes, int, float, type, types.FunctionType, types.ModuleType)):
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor):
            if one.layout == torch.strided:
                yield one
        elif isinstance(one, Mapping):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, (list, tuple, set, frozenset)):
            waiting += one
        else:
            waiting += vars(one).values() if hasattr(one, "__dict__") else ()


@contextlib.contextmanager
def _before(owner: Any, name: str, guard: Callable[..., None]) -> Iterator[None]:
    """Call the guard before a method, within the block."""
    original = getattr(owner, name, None)
    if original is None:
        yield
        return
    own = name in vars(owner)

    @functools.wraps(original)
    def guarded_method(*args: Any, **kwargs: Any) -> Any:
        guard(*args, **kwargs)
        return original(*args, **kwargs)

    setattr(owner, name, guarded_method)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)
