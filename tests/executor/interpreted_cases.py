"""Cases of a program that runs kernels in Triton's interpreter: see :mod:`tests.executor.interpreted`.

By hand: ``TRITON_INTERPRET=1 python -m`` with the program's name.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable

import torch
import triton.runtime.interpreter as interpreter
from torch import Tensor

GUARD = 4096  # elements either side: more than a program's block


class Cases:
    """Functions by name; each has its say, whatever the others do."""

    def __init__(self) -> None:
        self._functions: dict[str, Callable[[], None]] = {}

    def __call__(self, function: Callable[[], None]) -> Callable[[], None]:
        """Decorates one."""
        self._functions[function.__name__] = function
        return function

    def run(self) -> None:
        """Prints {name: what went wrong, or nothing} as one line of JSON."""
        _shim_numpy()
        said: dict[str, str] = {}
        for name, function in self._functions.items():
            torch.manual_seed(0)
            try:
                function()
            except Exception:  # noqa: BLE001 - every case has its say
                said[name] = traceback.format_exc()
            else:
                said[name] = ""
        print(json.dumps(said))  # noqa: T201


def _shim_numpy() -> None:
    """numpy from 2.4 on turns no array of one element into a number: loops over a kernel's argument need that."""
    patch = interpreter._patch_lang_tensor

    def patched(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


class Guarded:
    """A function that allocates, with guards around what it returns, which kernels must leave whole.

    Args:
        plain: ``torch.empty`` or ``torch.empty_like``.
    """

    def __init__(self, plain: Callable[..., Tensor]) -> None:
        self.made: list[tuple[Tensor, int]] = []
        self.plain = plain

    def __call__(self, *args: object, **options: object) -> Tensor:
        fresh = self.plain(*args, **options)
        value = 77 if not fresh.dtype.is_floating_point else -123.0
        buffer = torch.full((fresh.numel() + 2 * GUARD,), value, dtype=fresh.dtype)
        self.made.append((buffer, fresh.numel()))
        return buffer.as_strided(fresh.shape, fresh.stride(), GUARD)

    def expect_whole(self) -> None:
        for buffer, count in self.made:
            assert bool((buffer[:GUARD] == buffer[0]).all()) and bool((buffer[GUARD + count :] == buffer[0]).all())
            assert float(buffer[0]) in (77.0, -123.0)
