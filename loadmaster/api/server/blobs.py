"""``/v1/blobs/{sha256}``: large problems, sent once as a stream and then named by requests.

A request names one in the place of its problem: ``{"problem": {"blob_sha256": "..."}}``. What a blob holds is looked at
only then. Blobs are a cache: whoever is told that one is not there sends it again.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Depends, Path, Request, Response
from fastapi.responses import StreamingResponse

from loadmaster.api.errors import ProblemType
from loadmaster.api.packed import UnreadableDocumentError
from loadmaster.api.server.context import Service, ServiceDep
from loadmaster.api.server.description import problem_answers
from loadmaster.api.server.keys import Caller
from loadmaster.api.server.problems import Refusal, not_found
from loadmaster.api.server.reading.body import expect_plain
from loadmaster.api.server.reading.body_memory import NO_ROOM, NO_ROOM_RETRY_AFTER_S, Held
from loadmaster.api.server.reading.parsing import MOST_VALUES, count_values
from loadmaster.api.server.reading.submissions import BLOB, Asked, NamedBlob, Submission
from loadmaster.api.server.security import REPORT_HEADERS
from loadmaster.api.store.blobs import BlobPacker
from loadmaster.errors import InputError

__all__ = ["HeldDep", "answer_submission", "router"]

logger = logging.getLogger(__name__)

_BYTES = "application/octet-stream"

router = APIRouter(tags=["blobs"])
Sha256 = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="SHA-256 of the bytes, in hexadecimal")]


async def held(request: Request) -> Held:
    """The share of the memory for bodies that a request holds."""
    found = request.state.held
    assert isinstance(found, Held)
    return found


HeldDep = Annotated[Held, Depends(held)]


@router.put(
    "/v1/blobs/{sha256}",
    status_code=201,
    response_class=Response,
    responses={200: {"description": "it was here already"}, **problem_answers(408, 413, 415, 422, 503)},
    openapi_extra={
        "requestBody": {"required": True, "content": {_BYTES: {"schema": {"type": "string", "format": "binary"}}}}
    },
)
async def put_blob(service: ServiceDep, sha256: Sha256, request: Request) -> Response:
    """Keep a blob: any bytes whose hash is as the path says, a problem document if a request is to name it."""
    expect_plain(request)
    packer = BlobPacker()
    async for piece in request.stream():
        packer.add(piece, count_values(piece))
    packed = packer.packed()
    if packed.sha256 != sha256:
        problem = f"is not the hash of the body, which is {packed.sha256}"
        raise InputError("path.sha256", sha256, problem, "Give the SHA-256 of the bytes as they are sent.")
    new = await anyio.to_thread.run_sync(service.blobs.put, packed)
    return Response(status_code=201 if new else 200, headers={"Location": f"/v1/blobs/{sha256}"})


@router.head("/v1/blobs/{sha256}", response_class=Response, responses=problem_answers(404, 422))
def head_blob(service: ServiceDep, sha256: Sha256) -> Response:
    """Tell whether a blob is here, and how long it is."""
    head = service.blobs.head(sha256)
    if head is None:
        raise not_found("blob", sha256)
    return Response(media_type=_BYTES, headers={"Content-Length": str(head.size_bytes)})


@router.get(
    "/v1/blobs/{sha256}",
    response_class=StreamingResponse,
    responses={200: {"content": {_BYTES: {}}}, **problem_answers(404, 422)},
)
def get_blob(service: ServiceDep, sha256: Sha256) -> Response:
    """Get the bytes of a blob as they were sent."""
    blob = service.blobs.get(sha256)
    if blob is None:
        raise not_found("blob", sha256)
    headers = {
        **REPORT_HEADERS,
        "Content-Length": str(blob.size_bytes),
        "Content-Disposition": f'attachment; filename="{sha256}"',
    }
    return StreamingResponse(blob.pieces(), media_type=_BYTES, headers=headers)


async def answer_submission(
    service: Service, caller: Caller, held: Held, asked: Asked, then: Callable[[Submission], Response]
) -> Response:
    """Read a request to plan, with the blob that may stand in the place of its problem, and answer it in a thread.

    Raises:
        InputError: it cannot be planned, or there is no such blob.
        Refusal: 429 or 503, no place for it; 503, other bodies take the memory, or the process for large ones broke.
    """
    with service.bodies.take(caller):
        answer = await service.readers.read(asked, then)
        if isinstance(answer, NamedBlob):
            blob = await anyio.to_thread.run_sync(_named_bytes, service, held, answer)
            answer = await service.readers.read(dataclasses.replace(asked, blob=blob), then)
    assert not isinstance(answer, NamedBlob)
    return answer


def _named_bytes(service: Service, held: Held, named: NamedBlob) -> bytes:
    sha256 = named.sha256
    missing = InputError(
        f"problem.{BLOB}", sha256, "is no blob that is here", "Send it with PUT /v1/blobs/SHA256, then again."
    )
    if not isinstance(sha256, str):
        raise missing
    head = service.blobs.head(sha256)
    if head is None:
        raise missing
    # Before it is read: the request itself is small.
    if not held.fits(head.size_bytes, min(head.json_values, MOST_VALUES)):
        raise Refusal(503, ProblemType.BUSY, NO_ROOM, {"Retry-After": NO_ROOM_RETRY_AFTER_S})
    blob = service.blobs.get(sha256)
    if blob is None:
        raise missing
    service.blobs.use(sha256)
    try:
        return b"".join(blob.pieces())
    except UnreadableDocumentError as error:
        logger.error("a blob is dropped: %s", error)
        service.blobs.drop(sha256)
        raise missing from None
