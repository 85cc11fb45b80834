"""Hooks that step aside for ``torch.func``: its transforms refuse to run under hooks on saved tensors.

While a cache is entered, its hooks are taken off for the time of such a transform, which saves its tensors as if there
were no cache. Hooks of others stay, and the transform then says what it always says.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from loadmaster.executor.torch_private.autograd import (
    disable_saved_tensors_hooks,
    pop_saved_tensors_hooks,
    push_saved_tensors_hooks,
    replace_disable_saved_tensors_hooks,
    top_saved_tensors_hooks,
)

_entered = 0
_lock = threading.Lock()
Hooks = tuple[Callable[[Any], Any], Callable[[Any], Any]]
_ours = threading.local()


def push(hooks: Hooks) -> None:
    """Put the hooks of a cache on this thread's stack."""
    global _entered
    push_saved_tensors_hooks(*hooks)
    _on_this_thread().append(hooks)
    with _lock:
        _entered += 1
        replace_disable_saved_tensors_hooks(_without_ours)


def pop() -> None:
    """Take the hooks that were put there last off this thread's stack."""
    global _entered
    pop_saved_tensors_hooks()
    _on_this_thread().pop()
    with _lock:
        _entered -= 1
        if not _entered:
            replace_disable_saved_tensors_hooks(disable_saved_tensors_hooks)


@contextlib.contextmanager
def _without_ours(error_message: str) -> Iterator[None]:
    """Replace PyTorch's function: do the same, with the hooks of caches off the stack as far as they are on top."""
    taken: list[Hooks] = []
    for hooks in reversed(_on_this_thread()):
        top = top_saved_tensors_hooks(True)
        if top is None or top[0] != hooks[0]:
            break
        pop_saved_tensors_hooks()
        taken.append(hooks)
    try:
        with disable_saved_tensors_hooks(error_message):
            yield
    finally:
        for hooks in reversed(taken):
            push_saved_tensors_hooks(*hooks)


def _on_this_thread() -> list[Hooks]:
    found: list[Hooks] = _ours.__dict__.setdefault("hooks", [])
    return found
