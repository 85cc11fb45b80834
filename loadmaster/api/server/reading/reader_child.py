"""A process that reads large requests to plan: ``python -m loadmaster.api.server.reading.reader_child FD BYTES``.

Started by :mod:`loadmaster.api.server.reading.reader_process`, never by hand. It may take so many bytes of memory. Over
the inherited connection FD come one request after the other, and each is answered by what it says, or by the exception
that says why not. It ends when its parent is gone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import logging
import os
import resource
import sys
from multiprocessing.connection import Connection
from typing import Any

from loadmaster.api.planning import load_planner
from loadmaster.api.server.reading.submissions import Asked, NamedBlob, Reader, Submission
from loadmaster.api.server.shown import with_shown_value
from loadmaster.errors import InputError
from loadmaster.orphans import wake_when_orphaned

__all__ = ["main"]

logger = logging.getLogger(__name__)

_WATCH_EVERY_S = 0.5


def _answer(reader: Reader, asked: Asked) -> Submission | NamedBlob | Exception:
    try:
        return reader.read(asked)
    except InputError as error:
        # Without what it was found in, which may be the whole body.
        return with_shown_value(error)
    except MemoryError:
        return MemoryError()
    except Exception as error:
        logger.exception("a bug in reading a body of %d bytes", asked.size_bytes)
        return RuntimeError(f"{type(error).__name__} while a body was read in a process of its own")


def _receive(connection: Connection[Any, Any]) -> Asked:
    asked = connection.recv()
    assert isinstance(asked, Asked)
    body = connection.recv_bytes()
    return dataclasses.replace(asked, body=body, blob=connection.recv_bytes() if connection.recv() else None)


def main() -> None:
    """Read requests until the parent has no more."""
    connection: Connection[Any, Any] = Connection(int(sys.argv[1]))
    parent, memory_bytes = os.getppid(), int(sys.argv[2])
    wake_when_orphaned()
    if memory_bytes:
        # Some systems know the limit but refuse to set it: bodies are then read without one.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    with contextlib.suppress(EOFError, OSError):
        planner_path, longest_s = connection.recv()
        reader = Reader(load_planner(planner_path), longest_s)
        while os.getppid() == parent:
            if connection.poll(_WATCH_EVERY_S):
                connection.send(_answer(reader, _receive(connection)))
                gc.collect()


if __name__ == "__main__":
    main()
