"""The blocking client: thread-safe, reconnects, retries once, streams.

    with Client(home="demo") as client:
        result = client.infer("delay", rows=[{...}])
        print(result.predictions[0].label, result.lineage.weights)

Each call takes an idle connection, or dials one, and gives it back. So threads never wait for one
another's answers, and a slow answer costs its own connection only.
"""

import os
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from mortise.addresses import home_path, socket_path
from mortise.connection import Connection
from mortise.requests import Call, infer_body, new_call, new_trace_id
from mortise.result import Record, Result
from mortise.retry import timed_out
from mortise.stream import Stream
from mortise.wire import pack

CONNECTIONS_MAX = 64
"""Calls of one client in flight at once; a further one waits, within its deadline."""


class Client:
    """A client of one service of a mesh, by default the orchestrator.

    `socket` is a path; else the service's socket in `home` (default: MORTISE_HOME, then the
    current directory). Connects when first used. Every method may be called from any thread, and
    raises the exceptions of the error vocabulary (`mortise.MortiseError` is their base).
    """

    def __init__(
        self,
        socket: str | os.PathLike[str] | None = None,
        *,
        home: str | os.PathLike[str] | None = None,
        service: str = "orchestrator",
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        self.path = os.fspath(socket) if socket else socket_path(home_path(home), service)
        self.service = service
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(connections_max)
        self._process = os.getpid()
        self._is_closed = False

    def infer(
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
        """One prediction; exactly one of rows, inputs, text (or `input_ids`, `messages`).

        `inputs` is a map of name → numpy array, torch tensor or nested lists; `input_ids`, and
        `attention_mask` where not every id counts, are rows of ids of any length, or arrays.
        `options` are fields of the request: model_version, id, tenant_id, entity, risk_level,
        outputs, parameters, ….
        """
        trace_id = trace_id or new_trace_id()
        body = infer_body(model, trace_id, rows, inputs, text, options)
        with Stream(self, self._call("infer", body, trace_id, timeout_s), Result) as stream:
            return stream.wait()

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
    ) -> Stream[Result]:
        """As `infer`, item by item: iterate it, then read `result`. Closing it cancels."""
        trace_id = trace_id or new_trace_id()
        body = infer_body(model, trace_id, rows, inputs, text, options)
        call = self._call("infer", body, trace_id, timeout_s)
        return Stream(self, call, Result, asks_items=True)

    def call(
        self,
        method: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        trace_id: str = "",
        on_item: Callable[[Record], None] | None = None,
    ) -> Record:
        """Any method of the service; `on_item` gets the items of one that streams."""
        call = self._call(method, pack(dict(body or {})), trace_id or new_trace_id(), timeout_s)
        with Stream(self, call, Record, asks_items=on_item is not None) as stream:
            return stream.wait(on_item)

    def close(self) -> None:
        """Close the idle connections; calls in flight end, later ones are refused."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def take(self, call: Call, deadline_s: float) -> Connection:
        """An idle connection that is still open, or a new one. Raises DEADLINE_EXCEEDED when all
        `connections_max` stay in use until the deadline."""
        if not self._places.acquire(timeout=max(0.0, deadline_s - time.monotonic())):
            raise timed_out(call, "every connection of this client is in use")
        try:
            while (idle := self._pop_idle()) is not None:
                if idle.is_usable():
                    return idle
                idle.close()
            return Connection(self.path, deadline_s)
        except BaseException:
            self._places.release()
            raise

    def give_back(self, connection: Connection, *, is_clean: bool) -> None:
        """End the use of a connection; a clean one, with nothing in flight, is kept."""
        with self._lock:
            keeps = is_clean and not self._is_closed and self._process == os.getpid()
            if keeps:
                self._idle.append(connection)
        if not keeps:
            connection.close()
        self._places.release()

    def _pop_idle(self) -> Connection | None:
        with self._lock:
            if self._is_closed:
                raise RuntimeError("this client is closed")
            if self._process != os.getpid():  # after a fork: those are the parent's
                for inherited in self._idle:
                    inherited.close()
                self._process, self._idle = os.getpid(), []
            return self._idle.pop() if self._idle else None

    def _call(self, method: str, body: bytes, trace_id: str, timeout_s: float | None) -> Call:
        return new_call(self.service, method, body, trace_id, timeout_s)
