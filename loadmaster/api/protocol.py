"""Parts that both clients share, without any input or output: requests, retries, errors, event streams.

Needs httpx and pydantic only.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from loadmaster.api.documents import FailureDocument, PlanResource, ProblemDetails
from loadmaster.api.errors import (
    BY_NAME,
    BY_TYPE,
    NoPlanError,
    ProblemType,
    ServiceError,
    UnavailableError,
    WaitTimeoutError,
)
from loadmaster.errors import CancelledError, InputError, LoadmasterError
from loadmaster.models import kinds
from loadmaster.models.documents import MEASUREMENT_SCHEMA, Document, load_document, write

ResourceT = TypeVar("ResourceT", bound=BaseModel)


@dataclass(frozen=True)
class Blob:
    """A problem that the service keeps, by the hash of its bytes: submitted in the place of the problem itself."""

    sha256: str


ProblemSource = Document | str | Path | kinds.Problem | Blob

KEY_VARIABLE = "LOADMASTER_API_KEY"
DEFAULT_URL = "http://127.0.0.1:8642"
# The server sends a word on an idle stream every 15 seconds.
STREAM_TIMEOUT_S = 45.0
REQUEST_TIMEOUT_S = 60.0
_CONNECT_TIMEOUT_S = 10.0
LONG_POLL_S = 20.0
FRONTIER_POLL_S = 1.0
_LATEST = {"incumbent": "latest"}

_RETRIED_STATUSES = frozenset({429, 502, 503, 504})
_LONGEST_RETRY_AFTER_S = 60.0


class OptionsDocument(Protocol):
    """Options that can write themselves as JSON, such as PlanOptions."""

    def to_document(self) -> dict[str, Any]: ...


Options = Mapping[str, Any] | OptionsDocument | None


@dataclass(frozen=True)
class Call:
    """One request. All of them may be repeated: they read, or are idempotent, or carry a key that makes them so."""

    method: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    body: Document | bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = REQUEST_TIMEOUT_S

    def build(self, client: httpx.Client | httpx.AsyncClient) -> httpx.Request:
        """Build the request with a client of httpx."""
        headers = dict(self.headers)
        content: bytes | None = None
        if isinstance(self.body, bytes):
            content, headers["Content-Type"] = self.body, "application/octet-stream"
        elif self.body is not None:
            content, headers["Content-Type"] = _json(self.body), "application/json"
        return client.build_request(
            self.method,
            self.path,
            params=dict(self.params) or None,
            content=content,
            headers=headers,
            timeout=httpx.Timeout(self.timeout_s, connect=_CONNECT_TIMEOUT_S),
        )


@dataclass(frozen=True)
class Backoff:
    """Retry policy: how many attempts, after which pauses: doubling, with jitter, or as the server says."""

    attempts: int = 6
    first_s: float = 0.2
    longest_s: float = 10.0

    def pause_s(self, attempt: int, answer: httpx.Response | None = None) -> float:
        """Seconds to wait after failed attempt 1, 2, ..."""
        longest = min(self.longest_s, self.first_s * 2.0 ** (attempt - 1))
        jitter = random.uniform(longest / 2.0, longest)
        asked = None if answer is None else retry_after_s(answer)
        return jitter if asked is None else asked + min(jitter, 1.0)

    def again(self, attempt: int, answer: httpx.Response | None) -> bool:
        """Return whether to repeat after this attempt; ``answer`` is None when none came."""
        return attempt < self.attempts and (answer is None or answer.status_code in _RETRIED_STATUSES)


@dataclass(frozen=True)
class Event:
    """One event of a plan: ``id`` counts from 1 in each plan, and a stream can be resumed after it; ``type`` is state,
    progress, incumbent, log or done."""

    id: int
    type: str
    data: Mapping[str, Any]


class EventDecoder:
    """Server-sent events out of the lines of a stream."""

    def __init__(self) -> None:
        self._fields: dict[str, str] = {}

    def feed(self, line: str) -> Event | None:
        """Take the next line (without its end); an empty line completes an event."""
        if line.startswith(":"):
            return None
        if line:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "data" and "data" in self._fields:
                value = self._fields["data"] + "\n" + value
            self._fields[name] = value
            return None
        fields, self._fields = self._fields, {}
        if not {"id", "event", "data"} <= fields.keys():
            return None
        return Event(int(fields["id"]), fields["event"], json.loads(fields["data"]))


def service_url(given: str) -> httpx.URL:
    """The address of a service. Raises InputError if it is not an address, as without ``http://``."""
    try:
        url = httpx.URL(given)
        if url.scheme in ("http", "https") and url.host:
            return url
        why = "has no http:// or https://, or no host"
    except httpx.InvalidURL as error:
        why = f"is no address: {error}"
    raise InputError("server", given, why, f"Give the address of a service, as in {DEFAULT_URL}.")


def key_headers(api_key: str | None) -> dict[str, str]:
    """The headers that carry a key; by default that of the environment, if there is one. Raises InputError if it cannot
    be one, without showing it."""
    field = KEY_VARIABLE if api_key is None else "api_key"
    key = (os.environ.get(KEY_VARIABLE, "") if api_key is None else api_key).strip()
    if not key:
        return {}
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise InputError(field, "...", "is no API key", "Give the key as loadmaster keys add printed it.")
    return {"Authorization": f"Bearer {key}"}


def submit_call(problem: ProblemSource, options: Options, labels: Mapping[str, str] | None, dry_run: bool) -> Call:
    """Build the call ``POST /v1/plans`` that submits a problem, or only validates it. Raises InputError if the problem
    cannot be read."""
    params = {"dry_run": "true"} if dry_run else {}
    return Call("POST", "/v1/plans", params, _request(problem, options, labels), _key())


def blob_calls(problem: ProblemSource) -> tuple[Blob, Call, Call]:
    """The blob of a problem, with HEAD and PUT /v1/blobs/{sha256}. Raises InputError if the problem cannot be read."""
    content = _json(_document(problem))
    blob = Blob(hashlib.sha256(content).hexdigest())
    path = f"/v1/blobs/{blob.sha256}"
    return blob, Call("HEAD", path), Call("PUT", path, body=content)


def frontier_call(
    problem: ProblemSource,
    limits: Sequence[int | str] | None,
    budgets_bytes: Sequence[int | str] | None,
    options: Options,
    labels: Mapping[str, str] | None,
    *,
    prices: bool = False,
) -> Call:
    """Build the call ``POST /v1/frontiers`` with limits or budgets."""
    given = {"limits": limits, "budgets_bytes": budgets_bytes}
    points = {name: list(values) for name, values in given.items() if values is not None}
    request = _request(problem, options, labels)
    if prices:
        request["options"]["prices"] = True
    return Call("POST", "/v1/frontiers", body={**request, **points}, headers=_key())


def list_call(state: str | None, kind: str | None, label: tuple[str, str] | None, owner: str | None) -> Call:
    """Build the call ``GET /v1/plans`` for the first page of a list."""
    named = None if label is None else f"{label[0]}:{label[1]}"
    filters = {"state": state, "kind": kind, "label": named, "owner": owner}
    return Call("GET", "/v1/plans", {name: value for name, value in filters.items() if value is not None})


def wait_call(plan_id: str, remaining_s: float | None) -> Call:
    """Build the call ``GET /v1/plans/{id}``, answered when the plan is final or the wait is over."""
    wait = LONG_POLL_S if remaining_s is None else max(0.0, min(LONG_POLL_S, remaining_s))
    return Call("GET", plan_path(plan_id), {"wait": f"{wait:.3f}"})


def incumbent_call(plan_id: str) -> Call:
    """Build the call ``GET /v1/plans/{id}/result`` for the result, or the best plan so far."""
    return Call("GET", plan_path(plan_id, "/result"), _LATEST)


def export_call(plan_id: str, name: str, numbers: Mapping[str, int], *, incumbent: bool) -> Call:
    """Build the call ``GET /v1/plans/{id}/export/{name}`` with the numbers of the export."""
    if not name.isidentifier():
        raise InputError("name", name, "is no name of an export", "Give one that the plan's links name, as in html.")
    params = {key: str(value) for key, value in numbers.items()} | (_LATEST if incumbent else {})
    return Call("GET", plan_path(plan_id, f"/export/{name}"), params)


def measurement_call(plan_id: str, measurement: Any) -> Call:
    """Build the call ``PUT /v1/plans/{id}/measurement`` with what a plan measured. Raises InputError if the file cannot
    be read."""
    is_document = isinstance(measurement, Mapping | str | Path)
    body = load_document(measurement) if is_document else write(MEASUREMENT_SCHEMA, measurement)
    return Call("PUT", plan_path(plan_id, "/measurement"), body=body)


def plan_path(plan_id: str, rest: str = "") -> str:
    """The path of a plan; an id can hold nothing that would leave it."""
    if not plan_id or not plan_id.replace("_", "").replace("-", "").isalnum():
        raise InputError("plan_id", plan_id, "is no id of a plan", "Give an id as the service gave it.")
    return f"/v1/plans/{plan_id}{rest}"


def resource(model: type[ResourceT], answer: httpx.Response) -> ResourceT:
    """A good answer as its model; any other raises."""
    raise_for_problem(answer)
    try:
        return model.model_validate_json(answer.content)
    except ValidationError as error:
        raise ServiceError(
            f"{answer.url} answered with something else than a {model.__name__}: is it a Loadmaster service of "
            f"this version? ({error.error_count()} fields differ)",
            status=answer.status_code,
        ) from None


def raise_for_problem(answer: httpx.Response) -> None:
    """Turn a refusal into the error it stands for: InputError if the service found the input wrong, as the planner here
    would have; else a ServiceError, whose subclass says what."""
    if answer.is_success:
        return
    try:
        details = ProblemDetails.model_validate_json(answer.content)
    except ValidationError:
        text = answer.text.strip()[:200]
        kind = UnavailableError if answer.status_code in _RETRIED_STATUSES else ServiceError
        raise kind(f"{answer.url} answered {answer.status_code}: {text}", status=answer.status_code) from None
    if details.type == ProblemType.INVALID_INPUT and details.errors:
        first = details.errors[0]
        raise InputError(first.field, Shown(first.value), first.problem, first.remedy)
    kind = BY_TYPE.get(details.type, ServiceError)
    raise kind(details.detail, status=details.status, type_=details.type)


class Shown(str):
    """A value that the server has already put into words: its repr is itself."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def json_object(answer: httpx.Response) -> dict[str, Any]:
    """A good answer that is any JSON object."""
    found = answer.json()
    if not isinstance(found, dict):
        raise ServiceError(f"{answer.url} answered with something else than an object.", status=answer.status_code)
    return found


def waited(name: str, timeout_s: float | None) -> WaitTimeoutError:
    """The error of a wait that was too short."""
    return WaitTimeoutError(f"{name} is not done after {timeout_s or 0.0:g} s; it goes on.")


def unreachable(url: str, error: httpx.TransportError) -> UnavailableError:
    """The error for a service that does not answer."""
    reason = str(error) or type(error).__name__
    return UnavailableError(f"{url} does not answer: {reason}. Is the server running (loadmaster serve)?")


def failure(plan: PlanResource) -> LoadmasterError:
    """Build the error that says why a final job has no plan, as planning here would have raised it."""
    if plan.state == "cancelled":
        return CancelledError(f"{plan.id} was cancelled before any plan was found.")
    error = plan.error or FailureDocument(type="", detail=f"{plan.id} is {plan.state} and says not why.")
    if error.type == InputError.__name__:
        return InputError(error.field or "", Shown(error.value or ""), error.problem or "", error.remedy or "")
    return BY_NAME.get(error.type, NoPlanError)(error.detail)


def retry_after_s(answer: httpx.Response) -> float | None:
    """The pause that a response asks for, in seconds: the header is a number or a date."""
    text = answer.headers.get("Retry-After", "").strip()
    if not text:
        return None
    if text.isdigit():
        seconds = float(text)
    else:
        try:
            moment = parsedate_to_datetime(text)
        except ValueError:
            return None
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        seconds = (moment - datetime.now(UTC)).total_seconds()
    return min(max(seconds, 0.0), _LONGEST_RETRY_AFTER_S)


class Deadline:
    """A time until which to wait; None is for ever."""

    def __init__(self, timeout_s: float | None) -> None:
        self._at = None if timeout_s is None else time.monotonic() + timeout_s

    @property
    def remaining_s(self) -> float | None:
        """Seconds left, never negative; None for ever."""
        return None if self._at is None else max(0.0, self._at - time.monotonic())

    @property
    def over(self) -> bool:
        return self.remaining_s == 0.0


def _request(problem: ProblemSource, options: Options, labels: Mapping[str, str] | None) -> dict[str, Any]:
    written = options if options is None or isinstance(options, Mapping) else options.to_document()
    return {"problem": _document(problem), "options": dict(written or {}), "labels": dict(labels or {})}


def _document(problem: ProblemSource) -> Document:
    if isinstance(problem, Blob):
        return {"blob_sha256": problem.sha256}
    return load_document(problem) if isinstance(problem, Mapping | str | Path) else kinds.write_problem(problem)


def _json(document: Document) -> bytes:
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


def _key() -> dict[str, str]:
    return {"Idempotency-Key": uuid.uuid4().hex}
