"""The client for asyncio: every class and method of :mod:`loadmaster.api.client`, with ``await``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import httpx

from loadmaster.api import protocol
from loadmaster.api.documents import FrontierResource, PlanPage, PlanResource, Sizing
from loadmaster.api.errors import ServiceError
from loadmaster.api.protocol import DEFAULT_URL, Backoff, Blob, Call, Deadline, Event, Options, ProblemSource
from loadmaster.models import kinds


class AsyncClient:
    """A service, for asyncio: :class:`loadmaster.api.client.Client` with ``await``."""

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        backoff: Backoff | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        url, headers = protocol.service_url(base_url), protocol.key_headers(api_key)
        self._http = httpx.AsyncClient(base_url=url, headers=headers, transport=transport)
        self._backoff = backoff or Backoff()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; see :meth:`loadmaster.api.client.Client.close`."""
        await self._http.aclose()

    async def submit(
        self, problem: ProblemSource, options: Options = None, *, labels: Mapping[str, str] | None = None
    ) -> AsyncPlanHandle:
        """Submit a problem; see :meth:`loadmaster.api.client.Client.submit`."""
        answer = await self.call(protocol.submit_call(problem, options, labels, dry_run=False))
        return AsyncPlanHandle(self, protocol.resource(PlanResource, answer).id)

    async def upload(self, problem: ProblemSource) -> Blob:
        """Send a large problem once; see :meth:`loadmaster.api.client.Client.upload`."""
        blob, ask, send = protocol.blob_calls(problem)
        try:
            await self.call(ask)
        except ServiceError as error:
            if error.status != httpx.codes.NOT_FOUND:
                raise
            await self.call(send)
        return blob

    async def dry_run(self, problem: ProblemSource, options: Options = None) -> Sizing:
        """Validate a problem without planning it; see :meth:`loadmaster.api.client.Client.dry_run`."""
        call = protocol.submit_call(problem, options, None, dry_run=True)
        return protocol.resource(Sizing, await self.call(call))

    def plan(self, plan_id: str) -> AsyncPlanHandle:
        """The handle of a plan; see :meth:`loadmaster.api.client.Client.plan`."""
        return AsyncPlanHandle(self, plan_id)

    async def list(
        self,
        *,
        state: str | None = None,
        kind: str | None = None,
        label: tuple[str, str] | None = None,
        owner: str | None = None,
    ) -> AsyncIterator[PlanResource]:
        """Iterate over plans, newest first; see :meth:`loadmaster.api.client.Client.list`."""
        call: Call | None = protocol.list_call(state, kind, label, owner)
        while call is not None:
            page = protocol.resource(PlanPage, await self.call(call))
            for plan in page.plans:
                yield plan
            call = None if page.next is None else Call("GET", page.next)

    async def frontier(
        self,
        problem: ProblemSource,
        limits: Sequence[int | str] | None = None,
        options: Options = None,
        *,
        budgets_bytes: Sequence[int | str] | None = None,
        labels: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> FrontierResource:
        """Plan under several limits and wait; see :meth:`loadmaster.api.client.Client.frontier`."""
        deadline = Deadline(timeout_s)
        call = protocol.frontier_call(problem, limits, budgets_bytes, options, labels)
        found = protocol.resource(FrontierResource, await self.call(call))
        while not found.final:
            if deadline.over:
                raise protocol.waited(found.id, timeout_s)
            await asyncio.sleep(protocol.FRONTIER_POLL_S)
            found = protocol.resource(FrontierResource, await self.call(Call("GET", found.links["self"])))
        return found

    async def get(self, path: str) -> Any:
        """Get a document of the service; see :meth:`loadmaster.api.client.Client.get`."""
        return (await self.call(Call("GET", path))).json()

    async def call(self, call: Call) -> httpx.Response:
        """Make a call, and repeat it as long as that may help; see :meth:`loadmaster.api.client.Client.call`."""
        attempt = 1
        while True:
            answer: httpx.Response | None = None
            try:
                answer = await self._http.send(call.build(self._http))
            except httpx.TransportError as error:
                if not self._backoff.again(attempt, None):
                    raise protocol.unreachable(str(self._http.base_url), error) from error
            if answer is not None and not self._backoff.again(attempt, answer):
                protocol.raise_for_problem(answer)
                return answer
            await asyncio.sleep(self._backoff.pause_s(attempt, answer))
            attempt += 1

    async def stream(self, path: str, after: int) -> AsyncIterator[Event]:
        """Iterate over the events of a plan; see :meth:`loadmaster.api.client.Client.stream`."""
        attempt = 1
        while True:
            answer: httpx.Response | None = None
            try:
                call = Call("GET", path, headers={"Last-Event-ID": str(after)}, timeout_s=protocol.STREAM_TIMEOUT_S)
                answer = await self._http.send(call.build(self._http), stream=True)
                if answer.status_code == httpx.codes.NO_CONTENT:
                    return
                if answer.is_success:
                    decoder = protocol.EventDecoder()
                    async for line in answer.aiter_lines():
                        event = decoder.feed(line)
                        if event is None:
                            continue
                        attempt, after = 1, event.id
                        yield event
                        if event.type == "done":
                            return
                elif not self._backoff.again(attempt, answer):
                    await answer.aread()
                    protocol.raise_for_problem(answer)
            except httpx.TransportError as error:
                if not self._backoff.again(attempt, None):
                    raise protocol.unreachable(str(self._http.base_url), error) from error
            finally:
                if answer is not None:
                    await answer.aclose()
            await asyncio.sleep(self._backoff.pause_s(attempt, answer))
            attempt += 1


class AsyncPlanHandle:
    """A plan that was submitted: :class:`loadmaster.api.client.PlanHandle` with ``await``."""

    def __init__(self, client: AsyncClient, plan_id: str) -> None:
        self.id = plan_id
        self._client = client

    def __repr__(self) -> str:
        return f"AsyncPlanHandle({self.id!r})"

    async def state(self) -> PlanResource:
        """Get the state of the job as it is now; see :meth:`loadmaster.api.client.PlanHandle.state`."""
        answer = await self._client.call(Call("GET", protocol.plan_path(self.id)))
        return protocol.resource(PlanResource, answer)

    async def wait(self, timeout_s: float | None = None) -> PlanResource:
        """Wait until the job is final; see :meth:`loadmaster.api.client.PlanHandle.wait`."""
        deadline = Deadline(timeout_s)
        while True:
            answer = await self._client.call(protocol.wait_call(self.id, deadline.remaining_s))
            plan = protocol.resource(PlanResource, answer)
            if plan.final:
                return plan
            if deadline.over:
                raise protocol.waited(self.id, timeout_s)

    def events(self, after: int = 0) -> AsyncIterator[Event]:
        """Iterate over the events of the plan; see :meth:`loadmaster.api.client.PlanHandle.events`."""
        return self._client.stream(protocol.plan_path(self.id, "/events"), after)

    async def result(self, timeout_s: float | None = None) -> kinds.Plan:
        """Wait for the plan; see :meth:`loadmaster.api.client.PlanHandle.result`."""
        return kinds.read_plan(await self.document(timeout_s))

    async def document(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Wait for the plan as a JSON document; see :meth:`loadmaster.api.client.PlanHandle.document`."""
        plan = await self.wait(timeout_s)
        if "result" not in plan.links:
            raise protocol.failure(plan)
        return protocol.json_object(await self._client.call(Call("GET", plan.links["result"])))

    async def incumbent(self) -> kinds.Plan:
        """Get the best plan so far; see :meth:`loadmaster.api.client.PlanHandle.incumbent`."""
        return kinds.read_plan(protocol.json_object(await self._client.call(protocol.incumbent_call(self.id))))

    async def export(self, name: str, *, incumbent: bool = False, **numbers: int) -> bytes:
        """Export the plan; see :meth:`loadmaster.api.client.PlanHandle.export`."""
        return (await self._client.call(protocol.export_call(self.id, name, numbers, incumbent=incumbent))).content

    async def log(self, offset: int = 0) -> str:
        """Get the log of the job; see :meth:`loadmaster.api.client.PlanHandle.log`."""
        call = Call("GET", protocol.plan_path(self.id, "/log"), {"offset": str(offset)})
        return (await self._client.call(call)).text

    async def cancel(self) -> PlanResource:
        """Cancel the job; see :meth:`loadmaster.api.client.PlanHandle.cancel`."""
        answer = await self._client.call(Call("POST", protocol.plan_path(self.id, ":cancel")))
        return protocol.resource(PlanResource, answer)

    async def send_measurement(self, measurement: Any) -> None:
        """Send what the plan measured; see :meth:`loadmaster.api.client.PlanHandle.send_measurement`."""
        await self._client.call(protocol.measurement_call(self.id, measurement))

    async def purge(self) -> None:
        """Remove the job from the service; see :meth:`loadmaster.api.client.PlanHandle.purge`."""
        await self._client.call(Call("DELETE", protocol.plan_path(self.id)))
