"""Calls one service: dials, reconnects until closed, retries idempotent calls once.

One connection at a time carries new requests; after a goaway the old one lives on until its last
answer. The messages of a connection are in `shared.rpc.link`.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from typing import Any

from contracts.errors import MeshError
from contracts.methods import METHODS
from shared.clock import SYSTEM, Clock
from shared.deadline import remaining_ms
from shared.rpc.connection import Flusher
from shared.rpc.dial import dial, jittered
from shared.rpc.link import ConnectionLost, Link, OnAnswer, OnItem, RemoteMethod, remote_methods

redial_s_min = 0.01
redial_s_max = 1.0
close_s_max = 1.0
"""How long `close` waits for its own task and connections."""
CLOSED = "the client was closed"
NOT_SENT = -1


class RpcClient:
    """A service as seen from another process. Used on one loop's thread.

    `on_connected` and `on_lost` are called without argument whenever it becomes reachable or not.
    """

    def __init__(
        self,
        path: str,
        service: str,
        *,
        clock: Clock = SYSTEM,
        on_connected: Callable[[], None] | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        self.path = str(path)
        self._methods = remote_methods(METHODS[service])
        self._service = service
        self._clock = clock
        self._on_connected = on_connected
        self._on_lost = on_lost
        self._link: Link | None = None
        self._links: set[Link] = set()
        self._connected = asyncio.Event()
        self._changed = asyncio.Event()
        self._msgids = itertools.count()
        self._loop: asyncio.AbstractEventLoop
        self._flusher: Flusher
        self._dialing: asyncio.Task[None] | None = None
        self._failure = "not dialled yet"
        self._is_closed = False

    @property
    def connected(self) -> bool:
        """Whether a new request can be sent now."""
        return self._link is not None

    async def connect(self, timeout_s: float) -> None:
        """Start dialling and wait for the connection; goes on dialling until `close` either way.

        Raises UNAVAILABLE when there is none after `timeout_s`.
        """
        self._start()
        try:
            async with asyncio.timeout(timeout_s):
                await self._connected.wait()
        except TimeoutError:
            raise self._unavailable(f"no connection within {timeout_s} s") from None

    async def call(
        self,
        method: str,
        body: Any,
        *,
        trace_id: str = "",
        timeout_s: float | None = None,
        on_item: OnItem | None = None,
    ) -> Any:
        """The method's typed response, within `timeout_s` (default: the method's time-out).

        Waits for a connection if there is none. A lost connection is retried once where the
        method is idempotent and nothing was streamed. Raises MeshError; cancelling the caller
        cancels the request.
        """
        remote = self._methods[method]
        row = remote.row
        timeout_s = row.budget.timeout_ms / 1_000 if timeout_s is None else timeout_s
        deadline_s = self._clock.monotonic() + timeout_s
        self._start()
        retries = 1 if row.idempotent and on_item is None else 0
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    link = await self._wait_link()
                    try:
                        return await self._ask(link, remote, body, trace_id, deadline_s, on_item)
                    except ConnectionLost:
                        if not retries:
                            raise
                        retries -= 1
        except TimeoutError:
            if self._link is None:
                raise self._unavailable(f"no connection within {timeout_s} s") from None
            text = f"{method}: no answer within {timeout_s} s"
            raise MeshError(
                "DEADLINE_EXCEEDED", text, details={"hop": self._service}, trace_id=trace_id
            ) from None

    def call_nowait(
        self,
        method: str,
        body: Any,
        on_answer: OnAnswer,
        *,
        trace_id: str = "",
        deadline_ms: int | None = None,
    ) -> int:
        """Send a request and return its msgid: no future, no task, no time-out of our own.

        `on_answer(result, None)` or `on_answer(None, error)` is called once, in a later loop turn:
        the answer, UNAVAILABLE without a connection or after its loss, OVERLOADED with too many
        in flight, INVALID_REQUEST for a body that is too long (the msgid is −1 when nothing was
        sent).
        """
        remote = self._methods[method]
        try:
            if self._link is None:
                raise self._unavailable("not connected")
            return self._link.ask(
                remote, body, on_answer, trace_id=trace_id, deadline_ms=deadline_ms
            )
        except MeshError as error:
            asyncio.get_running_loop().call_soon(on_answer, None, error)
            return NOT_SENT

    def flush(self) -> None:
        """Send at once what was asked in this turn, for a caller who asks nothing more in it."""
        if self._link is not None:
            self._link.flush()

    def cancel(self, msgid: int) -> None:
        """Nobody waits for this request any more: its `on_answer` is not called."""
        for link in self._links:
            link.forget(msgid)

    async def close(self) -> None:
        """Stop dialling and drop the connection; whoever still waits gets UNAVAILABLE."""
        self._is_closed = True
        if self._dialing is not None:
            self._dialing.cancel()
            await asyncio.wait({self._dialing}, timeout=close_s_max)
        for link in list(self._links):
            link.abort(CLOSED)
        self._connected.set()  # wakes whoever waits for a connection that will not come
        with contextlib.suppress(TimeoutError):  # a loop that is about to end may not report it
            async with asyncio.timeout(close_s_max):
                while self._links:
                    self._changed.clear()
                    await self._changed.wait()

    # One request.

    async def _wait_link(self) -> Link:
        while self._link is None:
            if self._is_closed:
                raise self._unavailable("the client is closed")
            await self._connected.wait()
        return self._link

    async def _ask(
        self,
        link: Link,
        remote: RemoteMethod,
        body: Any,
        trace_id: str,
        deadline_s: float,
        on_item: OnItem | None,
    ) -> Any:
        answer: asyncio.Future[Any] = self._loop.create_future()

        def on_answer(result: Any, error: MeshError | None) -> None:
            if answer.done():
                return
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(error)

        left_ms = remaining_ms(deadline_s, self._clock.monotonic())
        msgid = link.ask(
            remote, body, on_answer, trace_id=trace_id, deadline_ms=left_ms, on_item=on_item
        )
        try:
            return await answer
        except asyncio.CancelledError:
            link.forget(msgid)
            raise

    # The connection.

    def _start(self) -> None:
        if self._is_closed:
            raise self._unavailable("the client is closed")
        if self._dialing is None:
            self._loop = asyncio.get_running_loop()
            self._flusher = Flusher.of(self._loop)
            self._dialing = self._loop.create_task(self._stay_connected())

    async def _stay_connected(self) -> None:
        """Dial, wait until the connection is of no use any more, dial again."""
        pause_s = redial_s_min
        while True:
            since_s = self._clock.monotonic()
            try:
                self._attach(await dial(self.path, self._make_link))
            except OSError as error:
                self._failure = f"{self.path}: {error.strerror or error}"
            while self._link is not None:
                self._changed.clear()
                await self._changed.wait()
            if self._clock.monotonic() - since_s > redial_s_max:
                pause_s = redial_s_min  # it was a good connection: dial again at once
                continue
            await asyncio.sleep(jittered(pause_s))
            pause_s = min(2 * pause_s, redial_s_max)

    def _make_link(self) -> Link:
        return Link(self._flusher, self._msgids, self._detach, self._lose)

    def _attach(self, link: Link) -> None:
        self._links.add(link)
        if link.transport is None:  # lost between the loop's hands and ours
            self._links.discard(link)
            return
        self._link = link
        self._connected.set()
        if self._on_connected is not None:
            self._loop.call_soon(self._on_connected)

    def _detach(self, link: Link) -> None:
        """No new request goes over this link."""
        if link is self._link:
            self._link = None
            self._failure = link.fault or "connection lost"
            self._connected.clear()
            self._changed.set()
            if self._on_lost is not None and not self._is_closed:
                self._loop.call_soon(self._on_lost)

    def _lose(self, link: Link) -> None:
        self._links.discard(link)
        self._changed.set()
        self._detach(link)

    def _unavailable(self, why: str) -> MeshError:
        return MeshError("UNAVAILABLE", f"{self._service}: {why} ({self._failure})")
