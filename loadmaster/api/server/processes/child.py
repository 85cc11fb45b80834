"""A process that works for the server: ``python -m loadmaster.api.server.processes.child FD BYTES``.

Started by :mod:`loadmaster.api.server.processes.process`, never by hand. It may take so many bytes of memory. Over the
inherited connection FD comes one piece of work after the other, and each is answered by what its function returns, or
by the exception that it raises. It ends when its parent is gone.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import os
import resource
import sys
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

from loadmaster import priority
from loadmaster.api.server.shown import with_shown_value
from loadmaster.errors import InputError, LoadmasterError
from loadmaster.models.kind import resolve
from loadmaster.orphans import wake_when_orphaned

__all__ = ["main"]

logger = logging.getLogger(__name__)

_WATCH_EVERY_S = 0.5


def _answer(connection: Connection[Any, Any]) -> Any:
    name, arguments, buffer_count, largest_file_bytes = connection.recv()
    descriptor = None if largest_file_bytes is None else reduction.recv_handle(connection)
    buffers = [connection.recv_bytes() for _ in range(buffer_count)]
    try:
        if descriptor is None:
            return resolve(name)(*arguments, *buffers)
        _, most_bytes = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file_bytes, most_bytes))
        with os.fdopen(descriptor, "wb") as file:
            return resolve(name)(file, *arguments, *buffers)
    except InputError as error:
        # Without what it was found in, which may be the whole body.
        return with_shown_value(error)
    except LoadmasterError as error:
        return error
    except MemoryError:
        return MemoryError()
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.EFBIG, errno.ENOSPC):
            return OSError(error.errno, os.strerror(error.errno))
        logger.exception("a bug in %s", name)
        return RuntimeError(f"{type(error).__name__} in {name}, in a process of its own")


def main() -> None:
    """Work until the parent has no more."""
    connection: Connection[Any, Any] = Connection(int(sys.argv[1]))
    parent, memory_bytes = os.getppid(), int(sys.argv[2])
    wake_when_orphaned()
    priority.lower()
    if memory_bytes:
        # Some systems know the limit but refuse to set it: work is then done without one.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    with contextlib.suppress(EOFError, OSError):
        while os.getppid() == parent:
            if connection.poll(_WATCH_EVERY_S):
                connection.send(_answer(connection))
                gc.collect()


if __name__ == "__main__":
    main()
