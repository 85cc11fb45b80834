"""Room for the frames of Python functions: a compiled step calls hundreds of short ones from a long one.

CPython keeps the frames of a thread in chunks of memory, 16 KiB each or as long as a longer frame needs. Where a long
function leaves a chunk all but full, every function that it calls gets a chunk of its own, mapped for that call and
given back after it, with a page fault or more. It depends on how many names the long function has. Planned steps of
GPT-2 and BERT did that some hundred times a step, and were notably longer for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Eight bytes each, and a thousand are added: the least that a chunk of 256 KiB is made for, and leaves most of it free.
_SLOTS = 16_000


def with_room(run: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """The function, called from a frame that is too long for any chunk there is, and gets one with much room to spare.

    Its arguments come as one list, which it may empty.
    """

    def call(arguments: list[Any]) -> Any:
        return run(arguments)

    call.__code__ = call.__code__.replace(co_stacksize=_SLOTS)
    call._boxed_call = True  # type: ignore[attr-defined]
    return call
