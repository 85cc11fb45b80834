"""The errors of the HTTP interface: their stable ``type`` URIs, and the exceptions the client makes of them."""

from __future__ import annotations

import enum

from loadmaster import errors
from loadmaster.errors import LoadmasterError


class ProblemType(enum.StrEnum):
    """``type`` of problem details. These never change; new ones may come."""

    INVALID_INPUT = "urn:loadmaster:problem:invalid-input"
    NOT_FOUND = "urn:loadmaster:problem:not-found"
    HOST_REFUSED = "urn:loadmaster:problem:host-refused"
    KEY_NEEDED = "urn:loadmaster:problem:key-needed"
    SCOPE_MISSING = "urn:loadmaster:problem:scope-missing"
    NOT_OWNER = "urn:loadmaster:problem:not-owner"
    ORIGIN_REFUSED = "urn:loadmaster:problem:origin-refused"
    METHOD_NOT_ALLOWED = "urn:loadmaster:problem:method-not-allowed"
    TOO_LARGE = "urn:loadmaster:problem:too-large"
    UNSUPPORTED_MEDIA_TYPE = "urn:loadmaster:problem:unsupported-media-type"
    NOT_READY = "urn:loadmaster:problem:not-ready"
    GONE = "urn:loadmaster:problem:gone"
    NO_PLAN = "urn:loadmaster:problem:no-plan"
    NOT_FINAL = "urn:loadmaster:problem:not-final"
    QUEUE_FULL = "urn:loadmaster:problem:queue-full"
    QUOTA_REACHED = "urn:loadmaster:problem:quota-reached"
    BUSY = "urn:loadmaster:problem:busy"
    TOO_SLOW = "urn:loadmaster:problem:too-slow"
    UNAVAILABLE = "urn:loadmaster:problem:unavailable"
    INTERNAL = "urn:loadmaster:problem:internal"
    HTTP = "urn:loadmaster:problem:http"


class ServiceError(LoadmasterError):
    """The service refused or could not answer. ``status`` is of HTTP, None when no answer came; ``type`` is the
    problem's URI, None when the answer was not a problem document."""

    def __init__(self, message: str, *, status: int | None = None, type_: str | None = None) -> None:
        self.status, self.type = status, type_
        super().__init__(message)


class UnknownPlanError(ServiceError):
    """The service knows no plan of that id."""

    exit_status = 2


class KeyNeededError(ServiceError):
    """The service asks for an API key, or does not know the one that was sent."""

    exit_status = 2


class NotAllowedError(ServiceError):
    """The API key may not do that: its scope is too narrow, or the plan is another's."""

    exit_status = 2


class QuotaReachedError(ServiceError):
    """The queue is full, for this key or for all, and retrying did not help."""


class NotReadyError(ServiceError):
    """The result is not there yet, or the plan must be final first."""


class NoPlanError(ServiceError):
    """The job is final, and there is no plan: it failed, or was cancelled too early."""


class TooLargeError(ServiceError):
    """The request is larger than the service accepts."""

    exit_status = 2


class UnavailableError(ServiceError):
    """The service cannot be reached, or is not ready, and retrying did not help."""


class WaitTimeoutError(ServiceError, TimeoutError):
    """The plan was not final within the time the caller was willing to wait; the job goes on."""

    exit_status = 4


BY_TYPE: dict[str, type[ServiceError]] = {
    ProblemType.NOT_FOUND: UnknownPlanError,
    ProblemType.KEY_NEEDED: KeyNeededError,
    ProblemType.SCOPE_MISSING: NotAllowedError,
    ProblemType.NOT_OWNER: NotAllowedError,
    ProblemType.QUOTA_REACHED: QuotaReachedError,
    ProblemType.QUEUE_FULL: QuotaReachedError,
    ProblemType.NOT_READY: NotReadyError,
    ProblemType.NOT_FINAL: NotReadyError,
    ProblemType.NO_PLAN: NoPlanError,
    ProblemType.TOO_LARGE: TooLargeError,
    ProblemType.BUSY: UnavailableError,
    ProblemType.UNAVAILABLE: UnavailableError,
}

# What a failed job raises in the client: the error that the planner raised in the worker.
BY_NAME: dict[str, type[LoadmasterError]] = {
    error.__name__: error
    for error in (errors.SolverError, errors.LimitReachedError, errors.CancelledError, errors.CheckFailedError)
}
