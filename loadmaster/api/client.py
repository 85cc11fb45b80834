"""The Python client of the service: :class:`Client`, and :class:`AsyncClient`, which is the same with ``await``.

>>> from loadmaster import Client
>>> with Client("http://127.0.0.1:8642") as client:                     # doctest: +SKIP
...     handle = client.submit("problem.json", {"budget_bytes": 8 << 30})
...     plan = handle.result()

A call that gets no answer is repeated after a pause; submissions carry a key, so that a repeated one makes no second
job. Refusals raise what planning in this process would raise (:class:`~loadmaster.errors.InputError` and so on), or
a :class:`~loadmaster.api.errors.ServiceError`. Needs the base install only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import httpx

from loadmaster.api import protocol
from loadmaster.api.documents import FrontierResource, PlanPage, PlanResource, Sizing
from loadmaster.api.errors import ServiceError
from loadmaster.api.protocol import DEFAULT_URL, Backoff, Blob, Call, Deadline, Event, Options, ProblemSource
from loadmaster.api.sync_async import Awaited, Blocking, method, series
from loadmaster.models import kinds

__all__ = ["AsyncClient", "AsyncPlanHandle", "Blob", "Client", "Event", "PlanHandle"]


HandleT = TypeVar("HandleT", bound="_Handle")


class _Service(Generic[HandleT]):
    """The methods of both clients."""

    def __init__(self, http: httpx.Client | httpx.AsyncClient, backoff: Backoff | None, handle: type[HandleT]) -> None:
        self._http, self._backoff, self._handle = http, backoff or Backoff(), handle

    @method
    async def close(self) -> None:
        """Close the connections to the service."""
        if isinstance(self._http, httpx.AsyncClient):
            await self._http.aclose()
        else:
            self._http.close()

    @method
    async def submit(
        self, problem: ProblemSource, options: Options = None, *, labels: Mapping[str, str] | None = None
    ) -> HandleT:
        """Submit a problem (typed, a document, the path of one, or what :meth:`upload` returned).

        Raises:
            InputError: problem or options are wrong, here or in the service's eyes.
        """
        answer = await self._call(protocol.submit_call(problem, options, labels, dry_run=False))
        return self.plan(protocol.resource(PlanResource, answer).id)

    @method
    async def upload(self, problem: ProblemSource) -> Blob:
        """Send a large problem once, for any number of submissions: ``submit`` and ``frontier`` take what this returns.
        Nothing is sent if the service has it already.

        Raises:
            InputError: the problem cannot be read.
        """
        blob, ask, send = protocol.blob_calls(problem)
        try:
            await self._call(ask)
        except ServiceError as error:
            if error.status != httpx.codes.NOT_FOUND:
                raise
            await self._call(send)
        return blob

    @method
    async def dry_run(self, problem: ProblemSource, options: Options = None) -> Sizing:
        """Validate a problem, and tell how large its model is, without planning."""
        return protocol.resource(Sizing, await self._call(protocol.submit_call(problem, options, None, dry_run=True)))

    def plan(self, plan_id: str) -> HandleT:
        """The handle of a plan that was submitted before. Asks nothing yet."""
        return self._handle(self, plan_id)

    @series
    async def list(
        self,
        *,
        state: str | None = None,
        kind: str | None = None,
        label: tuple[str, str] | None = None,
        owner: str | None = None,
    ) -> AsyncGenerator[PlanResource, None]:
        """Plans, newest first, as long as the caller goes on asking. ``owner`` is the name of a key."""
        call: Call | None = protocol.list_call(state, kind, label, owner)
        while call is not None:
            page = protocol.resource(PlanPage, await self._call(call))
            for plan in page.plans:
                yield plan
            call = None if page.next is None else Call("GET", page.next)

    @method
    async def frontier(
        self,
        problem: ProblemSource,
        limits: Sequence[int | str] | None = None,
        options: Options = None,
        *,
        budgets_bytes: Sequence[int | str] | None = None,
        prices: bool = False,
        labels: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> FrontierResource:
        """Plan a problem under several limits of its kind, and wait for all of them; ``prices``: as in PlanOptions.

        Raises:
            WaitTimeoutError: it took longer; the plans go on.
        """
        deadline = Deadline(timeout_s)
        call = protocol.frontier_call(problem, limits, budgets_bytes, options, labels, prices=prices)
        found = protocol.resource(FrontierResource, await self._call(call))
        while not found.final:
            if deadline.over:
                raise protocol.waited(found.id, timeout_s)
            await self._pause(protocol.FRONTIER_POLL_S)
            found = protocol.resource(FrontierResource, await self._call(Call("GET", found.links["self"])))
        return found

    @method
    async def get(self, path: str) -> Any:
        """Get any document of the service, such as ``/v1/solvers`` or ``/v1/hardware``."""
        return (await self._call(Call("GET", path))).json()

    @method
    async def call(self, call: Call) -> httpx.Response:
        """Make a call, repeating it as long as that may help.

        Raises:
            InputError, ServiceError: the service refused, or cannot be reached.
        """
        return await self._call(call)

    @series
    def stream(self, path: str, after: int) -> AsyncGenerator[Event, None]:
        """Events of a plan; a connection that is lost is made again, and goes on where it was cut."""
        return self._stream(path, after)

    async def _call(self, call: Call) -> httpx.Response:
        attempt = 1
        while True:
            answer: httpx.Response | None = None
            try:
                answer = await self._send(call)
            except httpx.TransportError as error:
                if not self._backoff.again(attempt, None):
                    raise protocol.unreachable(str(self._http.base_url), error) from error
            if answer is not None and not self._backoff.again(attempt, answer):
                protocol.raise_for_problem(answer)
                return answer
            await self._pause(self._backoff.pause_s(attempt, answer))
            attempt += 1

    async def _stream(self, path: str, after: int) -> AsyncGenerator[Event, None]:
        attempt = 1
        while True:
            answer: httpx.Response | None = None
            try:
                call = Call("GET", path, headers={"Last-Event-ID": str(after)}, timeout_s=protocol.STREAM_TIMEOUT_S)
                answer = await self._send(call, stream=True)
                if answer.status_code == httpx.codes.NO_CONTENT:
                    return
                if answer.is_success:
                    decoder = protocol.EventDecoder()
                    async for line in self._lines(answer):
                        event = decoder.feed(line)
                        if event is None:
                            continue
                        attempt, after = 1, event.id
                        yield event
                        if event.type == "done":
                            return
                elif not self._backoff.again(attempt, answer):
                    await self._read(answer)
                    protocol.raise_for_problem(answer)
            except httpx.TransportError as error:
                if not self._backoff.again(attempt, None):
                    raise protocol.unreachable(str(self._http.base_url), error) from error
            finally:
                if answer is not None:
                    await self._end(answer)
            await self._pause(self._backoff.pause_s(attempt, answer))
            attempt += 1

    async def _send(self, call: Call, stream: bool = False) -> httpx.Response:
        sent = self._http.send(call.build(self._http), stream=stream)
        return sent if isinstance(sent, httpx.Response) else await sent

    async def _pause(self, seconds: float) -> None:
        if isinstance(self._http, httpx.AsyncClient):
            await asyncio.sleep(seconds)
        else:
            time.sleep(seconds)

    async def _lines(self, answer: httpx.Response) -> AsyncGenerator[str, None]:
        if isinstance(self._http, httpx.AsyncClient):
            async for line in answer.aiter_lines():
                yield line
        else:
            for line in answer.iter_lines():
                yield line

    async def _read(self, answer: httpx.Response) -> None:
        if isinstance(self._http, httpx.AsyncClient):
            await answer.aread()
        else:
            answer.read()

    async def _end(self, answer: httpx.Response) -> None:
        if isinstance(self._http, httpx.AsyncClient):
            await answer.aclose()
        else:
            answer.close()


class Client(_Service["PlanHandle"], Blocking):
    """A service, for blocking code. Safe to share between threads.

    Args:
        api_key: of the service, where it asks for one; by default ``$LOADMASTER_API_KEY``.
        backoff: how calls are repeated.
        transport: of httpx, for tests or special networks.
    """

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        backoff: Backoff | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        url, headers = protocol.service_url(base_url), protocol.key_headers(api_key)
        super().__init__(httpx.Client(base_url=url, headers=headers, transport=transport), backoff, PlanHandle)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient(_Service["AsyncPlanHandle"], Awaited):
    """A service, for asyncio: :class:`Client` with ``await``."""

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        backoff: Backoff | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        url, headers = protocol.service_url(base_url), protocol.key_headers(api_key)
        http = httpx.AsyncClient(base_url=url, headers=headers, transport=transport)
        super().__init__(http, backoff, AsyncPlanHandle)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class _Handle:
    """A plan that was submitted."""

    def __init__(self, client: _Service[Any], plan_id: str) -> None:
        self.id = plan_id
        self._client = client

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    @method
    async def state(self) -> PlanResource:
        """Get the state of the job as it is now."""
        return protocol.resource(PlanResource, await self._client._call(Call("GET", protocol.plan_path(self.id))))

    @method
    async def wait(self, timeout_s: float | None = None) -> PlanResource:
        """Wait until the job is final, and get its state.

        Raises:
            WaitTimeoutError: that took longer than ``timeout_s``; the plan goes on.
        """
        return await self._final(timeout_s)

    @series
    def events(self, after: int = 0) -> AsyncGenerator[Event, None]:
        """Iterate over what happens to the plan, after event ``after`` to its end; survives lost connections."""
        return self._client._stream(protocol.plan_path(self.id, "/events"), after)

    @method
    async def result(self, timeout_s: float | None = None) -> kinds.Plan:
        """Wait for the plan; it may be an infeasible one, or the best that was found before a cancel.

        Raises:
            WaitTimeoutError: that took longer than ``timeout_s``; the plan goes on.
            LoadmasterError: the error that ended the planning.
        """
        return kinds.read_plan(await self._found(timeout_s))

    @method
    async def document(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Wait for the plan as its JSON document; raises as :meth:`result`."""
        return await self._found(timeout_s)

    @method
    async def incumbent(self) -> kinds.Plan:
        """The best plan so far, without waiting: checked, with the gap of its moment. Of one that is done, the result.

        It may be older than the latest figures of :meth:`state` by some seconds. Of a job that failed it is the last.

        Raises:
            NotReadyError: none was found yet, or it was not handed over yet.
            NoPlanError: it has ended, and nothing was found.
        """
        return kinds.read_plan(protocol.json_object(await self._client._call(protocol.incumbent_call(self.id))))

    @method
    async def export(self, /, name: str, *, incumbent: bool = False, **numbers: int) -> bytes:
        """The plan as a report, a picture, a trace, or for other programs: its kind says as what (``links`` of
        :meth:`state`), and which numbers that takes. Several files come as one ZIP archive.

        Args:
            incumbent: of one that is not done, the best so far (see :meth:`incumbent`).

        Raises:
            ServiceError: there is no plan to export, or no such export.
            InputError: the plan cannot be written so, or a number is wrong.
        """
        return (await self._client._call(protocol.export_call(self.id, name, numbers, incumbent=incumbent))).content

    @method
    async def send_measurement(self, measurement: Any) -> None:
        """Give the service what the plan measured when it ran, to be drawn over it: ``fitted.measurement``, or the
        document or file that ``loadmaster fit`` wrote. The latest one counts.

        Raises:
            InputError: it is of another plan, or not a measurement.
        """
        await self._client._call(protocol.measurement_call(self.id, measurement))

    @method
    async def log(self, offset: int = 0) -> str:
        """Get the log of the job from byte ``offset`` on."""
        call = Call("GET", protocol.plan_path(self.id, "/log"), {"offset": str(offset)})
        return (await self._client._call(call)).text

    @method
    async def cancel(self) -> PlanResource:
        """Cancel the job; what was found is kept. Cancelling what is final changes nothing."""
        answer = await self._client._call(Call("POST", protocol.plan_path(self.id, ":cancel")))
        return protocol.resource(PlanResource, answer)

    @method
    async def purge(self) -> None:
        """Remove the job and its plan from the service."""
        await self._client._call(Call("DELETE", protocol.plan_path(self.id)))

    async def _final(self, timeout_s: float | None) -> PlanResource:
        deadline = Deadline(timeout_s)
        while True:
            answer = await self._client._call(protocol.wait_call(self.id, deadline.remaining_s))
            plan = protocol.resource(PlanResource, answer)
            if plan.final:
                return plan
            if deadline.over:
                raise protocol.waited(self.id, timeout_s)

    async def _found(self, timeout_s: float | None) -> dict[str, Any]:
        plan = await self._final(timeout_s)
        if "result" not in plan.links:
            raise protocol.failure(plan)
        return protocol.json_object(await self._client._call(Call("GET", plan.links["result"])))


class PlanHandle(_Handle, Blocking):
    """A plan that was submitted."""


class AsyncPlanHandle(_Handle, Awaited):
    """A plan that was submitted: :class:`PlanHandle` with ``await``."""
