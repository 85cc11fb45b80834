"""Settings of the service, from the environment (``LOADMASTER_*``) or from the command line's flags."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadmaster.errors import InputError

__all__ = ["MEBIBYTE", "PREFIX", "Settings"]

PREFIX = "LOADMASTER_"
MEBIBYTE = 1024 * 1024
_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")


def _default_database_url() -> str:
    return f"sqlite:///{Path.home() / '.loadmaster' / 'service.db'}"


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@dataclass(frozen=True)
class Settings:
    """Settings of a server and its workers; every field ``x`` is read from ``LOADMASTER_X``.

    Attributes:
        allowed_hosts: names that the service is reached by, separated by commas, next to ``localhost``, ``host`` and
            addresses in digits: requests for any other are refused.
        keys: ``required``: requests need an API key (``loadmaster keys``); ``off``: whoever reaches the service can use
            it, which is allowed on this machine alone.
        database_url: ``postgresql://user:password@host/name``, or ``sqlite:///`` and the path of a file (the default).
        workers: worker processes that ``serve`` starts and keeps alive; 0 for none (run ``loadmaster worker``).
        engine: where a worker's jobs run: ``local``, on its machine and one at a time; or ``ray``, on the Ray cluster
            that it joins and as many at a time as that has processors.
        max_body_bytes: larger request bodies are refused (413).
        max_bodies_memory_bytes: memory that all bodies may take at a time; more are refused (503) until some are read.
        max_blobs_bytes: what all blobs take in the store, compressed; those used longest ago go first.
        max_time_limit_s: the longest time limit a request may ask for.
        max_job_memory_bytes: address-space cap of a job's process, and of one that reads large bodies; by default the
            machine's memory; 0 is no cap.
        max_export_memory_bytes: address-space cap of a process that writes plans in other forms; 0 is no cap.
        max_queued_jobs: jobs that wait; more are refused (429) until some are done.
        max_key_bytes: that the store keeps of the jobs of one key, compressed; more submissions are refused (429).
        keep_days: final plans are purged so many days after their end; 0 keeps them for ever.
        keep_plans: final plans that are kept, the latest ones; 0 keeps any number.
        max_streams: event streams and requests that wait, at a time; more are refused (503). Half of the connections
            that the system lets the server have is always free of them.
        max_key_streams: of one key; more are refused (429).
        request_timeout_s: a request whose headers or body take longer to arrive is refused (408).
        lease_s: a running job whose worker is silent for this long goes back to the queue.
        max_attempts: how often a job is started before a crash makes it fail.
        poll_s: how often workers look for jobs and streams look for events.
        cancel_grace_s: how long a cancelled job may take to hand over its incumbent before it is killed.
        overrun_s: how long beyond its time limit a job may run before it is killed.
        planner: ``module:name`` of the :class:`~loadmaster.api.planning.Planner` that does the planning.
        log_format: ``text`` or ``json`` (one object per line).
    """

    host: str = "127.0.0.1"
    port: int = 8642
    allowed_hosts: str = ""
    keys: str = "off"
    database_url: str = dataclasses.field(default_factory=_default_database_url)
    workers: int = 1
    engine: str = "local"
    max_body_bytes: int = 64 * MEBIBYTE
    max_bodies_memory_bytes: int = 768 * MEBIBYTE
    max_blobs_bytes: int = 4096 * MEBIBYTE
    max_time_limit_s: float = 86_400.0
    max_job_memory_bytes: int = dataclasses.field(default_factory=_memory_bytes)
    max_export_memory_bytes: int = 2048 * MEBIBYTE
    max_queued_jobs: int = 10_000
    max_key_bytes: int = 16_384 * MEBIBYTE
    keep_days: float = 365.0
    keep_plans: int = 100_000
    max_streams: int = 512
    max_key_streams: int = 64
    request_timeout_s: float = 30.0
    lease_s: float = 15.0
    max_attempts: int = 2
    poll_s: float = 0.2
    cancel_grace_s: float = 2.0
    overrun_s: float = 60.0
    planner: str = "loadmaster.api.planning:FloorPlanner"
    log_format: str = "text"
    log_level: str = "info"

    def __post_init__(self) -> None:
        positive = (
            *("max_body_bytes", "max_bodies_memory_bytes", "max_time_limit_s", "max_queued_jobs", "request_timeout_s"),
            *(
                "max_blobs_bytes",
                "max_key_bytes",
                "max_streams",
                "max_key_streams",
                "lease_s",
                "max_attempts",
                "poll_s",
            ),
        )
        for name, value in dataclasses.asdict(self).items():
            if isinstance(value, str):
                continue
            if not 0 <= value < float("inf") or (name in positive and value == 0):
                raise InputError(name, value, "is out of range", "Give a positive number.")
        if self.port > 65_535:
            raise InputError("port", self.port, "is no port", "Give a number up to 65535.")
        for name in self.allowed_host_names:
            if not _HOST_NAME.fullmatch(name):
                remedy = "Give names alone, separated by commas: no scheme, no port, no wildcard."
                raise InputError("allowed_hosts", name, "is no host name", remedy)
        _one_of("keys", self.keys, ("off", "required"))
        _one_of("engine", self.engine, ("local", "ray"))
        _one_of("log_format", self.log_format, ("text", "json"))
        _one_of("log_level", self.log_level, ("debug", "info", "warning", "error"))

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ, **overrides: Any) -> Settings:
        """Settings from the environment; ``overrides`` that are not None win (the command line's flags). Raises
        InputError for a value that is not a number, or out of range."""
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            text = environment.get(PREFIX + field.name.upper())
            if text is not None:
                values[field.name] = _convert(PREFIX + field.name.upper(), text, str(field.type))
        values.update({name: value for name, value in overrides.items() if value is not None})
        return cls(**values)

    @property
    def allowed_host_names(self) -> tuple[str, ...]:
        """The names of ``allowed_hosts`` one by one."""
        return tuple(name.strip() for name in self.allowed_hosts.split(",") if name.strip())

    def to_environment(self) -> dict[str, str]:
        """The variables from which :meth:`from_environment` makes these settings again (for a child process)."""
        return {PREFIX + name.upper(): str(value) for name, value in dataclasses.asdict(self).items()}


def _convert(name: str, text: str, wanted: str) -> str | int | float:
    try:
        return int(text) if wanted == "int" else float(text) if wanted == "float" else text
    except ValueError:
        kind = "a whole number" if wanted == "int" else "a number"
        raise InputError(name, text, f"is not {kind}", f"Set it to {kind}.") from None


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InputError(name, value, "is not one of the choices", f"Use one of {', '.join(allowed)}.")
