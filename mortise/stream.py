"""One call through a client, from its first attempt to its answer: the only place that retries."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from mortise.errors import MortiseError
from mortise.requests import Call, request_frame, result_of
from mortise.result import Record, wrap
from mortise.retry import ATTEMPTS_MAX, GRACE_S, second_attempt_wait_s, timed_out
from mortise.wire import Answer

if TYPE_CHECKING:
    from mortise.client import Client

Response = TypeVar("Response", bound=Record)


class Stream(Generic[Response]):
    """The items of a call, then its `result`. Not started until it is iterated or waited for.

    One thread at a time. A call that has yielded an item is never tried again: the caller would
    see it twice.
    """

    def __init__(
        self,
        client: Client,
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

    @property
    def result(self) -> Response:
        """The final answer; what was not yet iterated is read and dropped."""
        return self.wait()

    def wait(self, on_item: Callable[[Record], None] | None = None) -> Response:
        """The final answer; the items before it go to `on_item`."""
        for item in self:
            if on_item is not None:
                on_item(item)
        assert self._result is not None, "a call ends with an answer or an exception"
        return self._result

    def close(self) -> None:
        """Cancel the call if it is still going."""
        self._steps.close()

    def __iter__(self) -> Iterator[Record]:
        return self._steps

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self) -> Generator[Any, None, None]:
        """The items of at most `ATTEMPTS_MAX` attempts; leaves the answer in `_result`."""
        for attempt in range(1, ATTEMPTS_MAX + 1):
            has_yielded = False
            try:
                with closing(self._attempt()) as items:
                    for item in items:
                        has_yielded = True
                        yield item
            except MortiseError as error:
                error.trace_id = error.trace_id or self.trace_id
                wait_s = second_attempt_wait_s(error, self._call, self._remaining_s())
                if wait_s is None or has_yielded or attempt == ATTEMPTS_MAX:
                    raise
                time.sleep(wait_s)
            else:
                return

    def _attempt(self) -> Generator[Any, None, None]:
        connection = self._client.take(self._call, self._deadline_s)
        is_clean = False
        try:
            msgid = connection.next_msgid()
            frame = request_frame(msgid, self._call, self._remaining_s(), self._asks_items)
            connection.send(frame, self._deadline_s)
            while True:
                message = connection.receive(msgid, self._deadline_s + GRACE_S)
                if isinstance(message, Answer):
                    break
                yield wrap(message.params[-1])
            is_clean = True
            self._result = self._response(result_of(message, self._call))
        except TimeoutError as error:
            raise timed_out(self._call) from error
        finally:  # closing a connection that is not clean cancels what the service still does
            self._client.give_back(connection, is_clean=is_clean)

    def _remaining_s(self) -> float:
        return self._deadline_s - time.monotonic()
