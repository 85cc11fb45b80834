"""Requests that nobody would write: from the interface's own description, and from problems that were spoilt.

Used by a test of the service, in small, and by ``python -m benchmarks.service_fuzz``.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

from loadmaster.api.cli import app as command_line
from loadmaster.api.client import Client
from loadmaster.models.documents import Document

# What has no answer by then hangs.
TIMEOUT_S = 60.0

# A small problem of each kind, as ``loadmaster new`` makes it.
PRESETS = (
    "memory --chain 5 --budget 1GiB",
    "memory --chain 4 --offload-gbps 20 --budget 1GiB",
    "collective --topology ring --nodes 4 --collective allgather --bytes 4000,8000",
    "placement --chain 4 --host-gbps 20 --budget 1GiB",
    "partition --model rnn-10-8k --mesh 2x2 --budget 16GiB",
    "graph --model rgcn --dataset mutag --budget 1GiB",
    "index --distribution outliers --keys 2000 --operations 4000 --budget 1GiB",
    "training --model gpt2 --budget 1GiB",
)
_JUNK: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63), 10**30, 0.5, -0.0, 1e-320, 1e308),
    *("", "x", "\u0000", "\ud83d\ude00", "../../etc/passwd", "1e999", "x" * 5000, "memory", "9" * 400),
    *([], [[]], [None], [0] * 1000, {}, {"": {}}, {"kind": "memory"}, {"blob_sha256": "0" * 64}),
)


@dataclass
class Outcome:
    """What came back: how many answers by status, and the first of those that should not be."""

    asked: int = 0
    statuses: collections.Counter[int] = field(default_factory=collections.Counter)
    wrong: list[str] = field(default_factory=list)

    def note(self, status: int, what: str, problem: str | None) -> None:
        self.asked += 1
        self.statuses[status] += 1
        if problem is not None and len(self.wrong) < 20:
            self.wrong.append(f"{status} {problem}: {what[:500]}")


def preset_problems(folder: Path) -> list[Document]:
    """The problems of :data:`PRESETS`."""
    found = []
    for number, words in enumerate(PRESETS):
        path = folder / f"preset-{number}.json"
        assert command_line.main(["new", *words.split(), "-o", str(path)]) == 0
        found.append(json.loads(path.read_text()))
    return found


class Spoiler:
    """Spoils documents: the same seed spoils them in the same way."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def spoil(self, document: Document) -> bytes:
        """The JSON of a problem in which one to four things are other than they were; now and then, no JSON."""
        mutant = copy.deepcopy(dict(document))
        for _ in range(self._random.choice((1, 1, 2, 4))):
            self._change(mutant)
        text = json.dumps({"problem": mutant, "options": self._options()}).encode()
        return self._tear(text) if self._random.random() < 0.05 else text

    def _options(self) -> dict[str, Any]:
        if self._random.random() < 0.8:
            return {}
        names = ("time_limit_s", "gap", "seed", "solver", "method", "limit", "budget_bytes", "memory_limit_bytes", "x")
        return {self._random.choice(names): self._random.choice(_JUNK)}

    def _change(self, mutant: dict[str, Any]) -> None:
        places = list(_places(mutant))
        if not places:
            return
        parent, key = self._random.choice(places)
        value = parent[key]
        change = self._random.randrange(6)
        if change == 0:
            del parent[key]
        elif change == 1 and isinstance(value, int | float) and not isinstance(value, bool):
            parent[key] = value * self._random.choice((-1, 0, 2, 1000, 10**9, 10**18, 0.1))
        elif change == 2 and isinstance(value, list) and value:
            parent[key] = value + [self._random.choice(value)] * self._random.choice((1, 2, 50))
        elif change == 3:
            other_parent, other_key = self._random.choice(places)
            parent[key] = copy.deepcopy(other_parent[other_key])
        elif change == 4 and isinstance(parent, dict):
            parent[self._random.choice(("x", "", "schema", "name", str(key) + " "))] = copy.deepcopy(value)
        else:
            parent[key] = copy.deepcopy(self._random.choice(_JUNK))

    def _tear(self, text: bytes) -> bytes:
        at = self._random.randrange(len(text))
        return self._random.choice((text[:at], text[:at] + self._random.randbytes(3) + text[at + 3 :], text * 2))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Everything in a document, as what it is in and its key there."""
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def send_spoilt(url: str, problems: list[Document], count: int, seed: int) -> Outcome:
    """Spoilt problems to a service, for a dry run: each is sized, or refused with its place."""
    outcome, spoiler = Outcome(), Spoiler(seed)
    with httpx.Client(base_url=url, timeout=TIMEOUT_S) as http:
        for number in range(count):
            body = spoiler.spoil(problems[number % len(problems)])
            headers = {"Content-Type": "application/json"}
            try:
                answer = http.post("/v1/plans", params={"dry_run": "true"}, content=body, headers=headers)
            except httpx.HTTPError as error:
                outcome.note(0, repr(body), f"no answer ({type(error).__name__})")
                continue
            outcome.note(answer.status_code, repr(body), _what_is_wrong(answer))
    return outcome


def _what_is_wrong(answer: httpx.Response) -> str | None:
    if answer.status_code == 200:
        return None if "sizes" in answer.json() else "is no sizing"
    if answer.status_code != 422:
        return "is neither a sizing nor a refusal of the input"
    errors = answer.json().get("errors", [])
    named = errors and all(error["pointer"].startswith("/") and error["remedy"] for error in errors)
    return None if named else f"names no place: {answer.text[:200]}"


def send_described(url: str, problem: Document, examples: int, at: int) -> dict[str, Outcome]:
    """For each operation of the description, requests as it describes them and as it does not; none may be a 5xx.

    Args:
        problem: one that can be planned: some requests are about a plan of it.
        examples: for each operation.
        at: the seed.
    """
    with Client(url) as client:
        handle = client.submit(problem)
        handle.cancel()
    described = httpx.get(f"{url}/openapi.json", timeout=120.0)
    schema = schemathesis.openapi.from_dict(described.raise_for_status().json())
    found = {}
    for result in schema.get_all_operations():
        operation = result.ok()
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            found[f"{operation.label} ({mode.value})"] = _send(operation, mode, url, handle.id, examples, at)
    return found


def _send(operation: Any, mode: GenerationMode, url: str, plan_id: str, examples: int, at: int) -> Outcome:
    outcome = Outcome()
    session, chance = requests.Session(), random.Random(at)

    @seed(at)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: Any) -> None:
        # A plan that is there shows more than those that are not.
        if "plan_id" in (case.path_parameters or {}) and operation.method != "delete" and chance.random() < 0.5:
            case.path_parameters["plan_id"] = plan_id
        try:
            answer = case.call(base_url=url, session=session, timeout=TIMEOUT_S)
        except requests.RequestException as error:
            outcome.note(0, repr(case), f"no answer ({type(error).__name__})")
            return
        # The service is not stopping, has a store that answers, and room.
        outcome.note(answer.status_code, repr(case), "is an error of the server" if answer.status_code >= 500 else None)

    # Of an operation that takes nothing, nothing can be wrong.
    with contextlib.suppress(Unsatisfiable):
        send()
    return outcome
