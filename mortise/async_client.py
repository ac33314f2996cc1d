"""The asyncio client: the same calls as `mortise.client`, for one event loop.

    async with AsyncClient(home="demo") as client:
        results = await asyncio.gather(*(client.infer("delay", rows=[row]) for row in rows))

Calls share one connection, their msgids tell them apart; a stream has its own, so that its reader
holds back nobody else.
"""

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from mortise.addresses import home_path, socket_path
from mortise.async_connection import AsyncConnection, dial_async
from mortise.async_stream import AsyncStream
from mortise.generated import IN_FLIGHT_PER_CONNECTION_MAX
from mortise.requests import Call, infer_body, new_call, new_trace_id
from mortise.result import Record, Result
from mortise.retry import timed_out
from mortise.wire import pack


class AsyncClient:
    """A client of one service of a mesh, by default the orchestrator; as `mortise.Client`.

    Connects when first used, and is used from one event loop.
    """

    def __init__(
        self,
        socket: str | os.PathLike[str] | None = None,
        *,
        home: str | os.PathLike[str] | None = None,
        service: str = "orchestrator",
        in_flight_max: int = IN_FLIGHT_PER_CONNECTION_MAX,
    ) -> None:
        self.path = os.fspath(socket) if socket else socket_path(home_path(home), service)
        self.service = service
        self._shared: AsyncConnection | None = None
        self._dialing = asyncio.Lock()
        self._places = asyncio.BoundedSemaphore(in_flight_max)
        self._is_closed = False

    async def infer(
        self,
        model: str,
        *,
        rows: Any = None,
        inputs: Any = None,
        text: Any = None,
        timeout_s: float | None = None,
        trace_id: str = "",
        **options: Any,
    ) -> Result:
        """One prediction, as `Client.infer`. Cancelling the task cancels it at the service."""
        trace_id = trace_id or new_trace_id()
        body = infer_body(model, trace_id, rows, inputs, text, options)
        call = new_call(self.service, "infer", body, trace_id, timeout_s)
        async with AsyncStream(self, call, Result) as stream:
            return await stream.wait()

    def stream(
        self,
        model: str,
        *,
        rows: Any = None,
        inputs: Any = None,
        text: Any = None,
        timeout_s: float | None = None,
        trace_id: str = "",
        **options: Any,
    ) -> AsyncStream[Result]:
        """As `infer`, item by item: `async for` over it, then `await stream.wait()`."""
        trace_id = trace_id or new_trace_id()
        body = infer_body(model, trace_id, rows, inputs, text, options)
        call = new_call(self.service, "infer", body, trace_id, timeout_s)
        return AsyncStream(self, call, Result, asks_items=True)

    async def call(
        self,
        method: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        trace_id: str = "",
        on_item: Callable[[Record], None] | None = None,
    ) -> Record:
        """Any method of the service; `on_item` gets the items of one that streams."""
        packed = pack(dict(body or {}))
        call = new_call(self.service, method, packed, trace_id or new_trace_id(), timeout_s)
        async with AsyncStream(self, call, Record, asks_items=on_item is not None) as stream:
            return await stream.wait(on_item)

    async def close(self) -> None:
        """Close the connection; calls in flight end with an error, later ones are refused."""
        self._is_closed = True
        if self._shared is not None:
            await self._shared.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def take(self, call: Call, deadline_s: float, is_alone: bool) -> AsyncConnection:
        """The shared connection, or one for this call alone. Raises DEADLINE_EXCEEDED when
        `in_flight_max` calls stay in flight until the deadline."""
        try:
            async with asyncio.timeout(max(0.0, deadline_s - time.monotonic())):
                await self._places.acquire()
        except TimeoutError as error:
            raise timed_out(call, "too many calls of this client are in flight") from error
        try:
            return await (
                dial_async(self.path, deadline_s) if is_alone else self._share(deadline_s)
            )
        except BaseException:
            self._places.release()
            raise

    async def give_back(self, connection: AsyncConnection, is_alone: bool) -> None:
        """End the use of a connection."""
        self._places.release()
        if is_alone:
            await connection.close()

    async def _share(self, deadline_s: float) -> AsyncConnection:
        async with self._dialing:
            if self._is_closed:
                raise RuntimeError("this client is closed")
            if self._shared is None or not self._shared.is_usable:
                self._shared = await dial_async(self.path, deadline_s)
            return self._shared
