"""One call through an asyncio client, from its first attempt to its answer; as `mortise.stream`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from mortise.errors import MortiseError
from mortise.requests import Call, request_frame, result_of
from mortise.result import Record, wrap
from mortise.retry import ATTEMPTS_MAX, GRACE_S, second_attempt_wait_s, timed_out
from mortise.wire import Answer

if TYPE_CHECKING:
    from mortise.async_client import AsyncClient

Response = TypeVar("Response", bound=Record)


class AsyncStream(Generic[Response]):
    """The items of a call (`async for`), then `await stream.wait()` for the answer.

    A call that has yielded an item is never tried again: the caller would see it twice.
    """

    def __init__(
        self,
        client: AsyncClient,
        call: Call,
        response: Callable[[Mapping[str, Any]], Response],
        *,
        asks_items: bool = False,
    ) -> None:
        self.trace_id = call.trace_id
        self._client, self._call, self._response = client, call, response
        self._asks_items = asks_items
        self._deadline_s = time.monotonic() + call.timeout_s
        self._result: Response | None = None
        self._steps = self._run()

    async def wait(self, on_item: Callable[[Record], None] | None = None) -> Response:
        """The final answer; the items before it go to `on_item`."""
        async for item in self:
            if on_item is not None:
                on_item(item)
        assert self._result is not None, "a call ends with an answer or an exception"
        return self._result

    async def close(self) -> None:
        """Cancel the call if it is still going."""
        await self._steps.aclose()

    def __aiter__(self) -> AsyncIterator[Record]:
        return self._steps

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _run(self) -> AsyncGenerator[Any, None]:
        """The items of at most `ATTEMPTS_MAX` attempts; leaves the answer in `_result`."""
        for attempt in range(1, ATTEMPTS_MAX + 1):
            has_yielded = False
            try:
                async with aclosing(self._attempt()) as items:
                    async for item in items:
                        has_yielded = True
                        yield item
            except MortiseError as error:
                error.trace_id = error.trace_id or self.trace_id
                wait_s = second_attempt_wait_s(error, self._call, self._remaining_s())
                if wait_s is None or has_yielded or attempt == ATTEMPTS_MAX:
                    raise
                await asyncio.sleep(wait_s)
            else:
                return

    async def _attempt(self) -> AsyncGenerator[Any, None]:
        connection = await self._client.take(self._call, self._deadline_s, self._asks_items)
        msgid = connection.next_msgid()
        is_answered = False
        try:
            frame = request_frame(msgid, self._call, self._remaining_s(), self._asks_items)
            async with self._patience():
                await connection.send(msgid, frame, asks_items=self._asks_items)
            while True:
                async with self._patience():
                    message = await connection.receive(msgid)
                if isinstance(message, Answer):
                    break
                yield wrap(message.params[-1])
            is_answered = True
            self._result = self._response(result_of(message, self._call))
        except TimeoutError as error:
            raise timed_out(self._call) from error
        finally:
            connection.end(msgid, is_answered=is_answered)
            await self._client.give_back(connection, self._asks_items)

    def _patience(self) -> asyncio.Timeout:
        return asyncio.timeout(max(0.0, self._remaining_s() + GRACE_S))

    def _remaining_s(self) -> float:
        return self._deadline_s - time.monotonic()
