"""Rendering of plans without holding up the server: in processes with a memory cap, a few at a time.

Whoever leaves takes the work with it: it ends with the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import tempfile
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import IO, Any, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from loadmaster.api.errors import ProblemType
from loadmaster.api.server.keys import Caller
from loadmaster.api.server.places import HoldingResponse, Places
from loadmaster.api.server.problems import Refusal
from loadmaster.api.server.processes.pool import Pool
from loadmaster.api.server.processes.process import BrokenWorkError, Work
from loadmaster.api.server.rendering.drawing import ComparedPlans, ShownPlan
from loadmaster.api.settings import Settings
from loadmaster.models.kind import Export

__all__ = ["Renderer"]

_MOST_PROCESSES = 2
# Waiting, at work, or on their way to whoever asked.
_MOST, _MOST_OF_A_KEY = 32, 4
_LONGEST_S = 120.0
_LARGEST_FILE_BYTES = 256 << 20
_PIECE_BYTES = 256 << 10
_RETRY_AFTER_S = "5"
_DRAWING = "loadmaster.api.server.rendering.drawing"

ResultT = TypeVar("ResultT")


class Renderer:
    """Processes that render plans. Used within one event loop; :meth:`close` may be called from anywhere."""

    def __init__(self, settings: Settings) -> None:
        self._pool = Pool(_MOST_PROCESSES, settings.max_export_memory_bytes, "max_export_memory_bytes")
        self._places = Places("exports and pages of plans", _MOST, _MOST_OF_A_KEY)

    async def export(
        self,
        request: Request,
        caller: Caller,
        what: Export,
        numbers: Mapping[str, int],
        documents: tuple[bytes, ...],
        media_type: str,
        headers: Mapping[str, str],
    ) -> HoldingResponse:
        """The answer that sends a plan as one of its exports. Raises InputError if the plan cannot be written in this
        form; Refusal 413 if it is too large, 429 or 503 if there is no place for it, 503 if its process broke."""
        with contextlib.ExitStack() as held:
            held.enter_context(self._places.take(caller))
            file = held.enter_context(tempfile.TemporaryFile(prefix="loadmaster-export-"))
            work = Work(
                *(f"{_DRAWING}:write_export", _LONGEST_S, (what, dict(numbers)), documents),
                file=file,
                largest_file_bytes=_LARGEST_FILE_BYTES,
            )
            await self._do(request, work)
            size_bytes = file.seek(0, 2)
            sent = {**headers, "Content-Length": str(size_bytes)}
            response = HoldingResponse(_pieces(file), media_type=media_type, headers=sent)
            response.held = held.pop_all()
        return response

    async def show(self, request: Request, caller: Caller, documents: tuple[bytes, ...]) -> ShownPlan:
        """The pieces of the page of a plan. Raises as :meth:`export`."""
        with self._places.take(caller):
            found = await self._do(request, Work(f"{_DRAWING}:show", _LONGEST_S, (), documents))
        assert isinstance(found, ShownPlan)
        return found

    async def compare(self, request: Request, caller: Caller, documents: tuple[bytes, ...]) -> ComparedPlans:
        """The pieces of the page that compares two plans. Raises as :meth:`export`."""
        with self._places.take(caller):
            found = await self._do(request, Work(f"{_DRAWING}:compare", _LONGEST_S, (), documents))
        assert isinstance(found, ComparedPlans)
        return found

    def close(self) -> None:
        """End all processes; what they do is refused."""
        self._pool.close()

    async def _do(self, request: Request, work: Work) -> object:
        remedy = "Fetch the plan and its problem, and use loadmaster show."
        try:
            return await _until_gone(request, self._pool.do(work))
        except BrokenWorkError as error:
            if error.by_chance:
                detail = f"The plan could not be written: {error}. Try again later."
                raise Refusal(503, ProblemType.UNAVAILABLE, detail, {"Retry-After": _RETRY_AFTER_S}) from None
            raise Refusal(413, ProblemType.TOO_LARGE, f"The plan cannot be written here: {error}. {remedy}") from None
        except OSError as error:
            if error.errno == errno.ENOSPC:
                detail = "The server has no room on its disk to write the plan. Try again later."
                raise Refusal(503, ProblemType.UNAVAILABLE, detail, {"Retry-After": _RETRY_AFTER_S}) from None
            if error.errno != errno.EFBIG:
                raise
            detail = f"The plan takes a file of more than {_LARGEST_FILE_BYTES} bytes. {remedy}"
            raise Refusal(413, ProblemType.TOO_LARGE, detail) from None


async def _until_gone(request: Request, work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Return what comes of the work, cancelled when the client leaves. Raises ClientDisconnect if it has left."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            # What went wrong with the rest of its body, or that it has left.
            leaving.result()
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _pieces(file: IO[bytes]) -> AsyncIterator[bytes]:
    """A file that was just written, from its beginning: the system has it in memory."""
    file.seek(0)
    while piece := file.read(_PIECE_BYTES):
        yield piece
