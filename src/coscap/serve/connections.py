"""Connections that cannot be held open for nothing.

uvicorn waits for the header of a request as long as the client likes, and has no bound on connections that refuses
fairly. This protocol stands in front of uvicorn's own and adds both, through asyncio's public interface alone:

- a connection without a complete header within `header_seconds` is closed, at its beginning and after each answer;
- at most `connections` are open. One more closes the one that has waited longest without a whole header, or, if
  there is none, without a whole body: half-sent requests make room for whole ones. If all requests are whole, the new
  connection is closed.
"""

import asyncio
from contextvars import ContextVar
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from coscap.serve.limits import Limits

# The connection that a request came on: uvicorn starts the task of a request while we hand it the header.
CONNECTION: ContextVar["Connection | None"] = ContextVar("coscap-connection", default=None)


class Connection(asyncio.Protocol):
    """One connection. `requests` counts those in work on it (one, or none); `reading`: its body is not whole yet."""

    def __init__(self, pool: "ConnectionPool", inner: asyncio.Protocol) -> None:
        self._pool = pool
        self._inner = inner
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.requests = 0
        self.reading = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._inner.connection_made(transport)
        self._pool.add(self)
        self._wait_for_header()

    def data_received(self, data: bytes) -> None:
        before = CONNECTION.set(self)
        try:
            self._inner.data_received(data)
        finally:
            CONNECTION.reset(before)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_timer()
        self._pool.discard(self)
        self._inner.connection_lost(error)

    def begin_request(self) -> None:
        self.requests += 1
        self._stop_timer()

    def end_request(self) -> None:
        self.requests -= 1
        self.reading = False
        if not self.requests:
            self._pool.waits_again(self)
            self._wait_for_header()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _wait_for_header(self) -> None:
        self._stop_timer()
        if self._transport is not None and not self._transport.is_closing():
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._pool.header_seconds, self.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class ConnectionPool:
    """All open connections of a server. Calling it makes a protocol, as uvicorn expects of `http=`."""

    def __init__(self, limits: Limits) -> None:
        self.header_seconds = limits.header_seconds
        self._most = limits.connections
        self._open: dict[Connection, None] = {}  # the one that has waited longest first

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: Connection) -> None:
        self._open[connection] = None
        if len(self._open) > self._most:
            *others, new = self._open
            idle = (one for one in others if not one.requests)
            reading = (one for one in others if one.reading)
            closed = next(idle, None) or next(reading, None) or new
            del self._open[closed]
            closed.abort()

    def discard(self, connection: Connection) -> None:
        self._open.pop(connection, None)

    def waits_again(self, connection: Connection) -> None:
        if self._open.pop(connection, 0) is None:
            self._open[connection] = None

    def protocol(self) -> type[asyncio.Protocol]:
        """A class for uvicorn's option `http`."""
        pool = self

        class Bounded(Connection):
            def __init__(self, *arguments: Any, **options: Any) -> None:
                super().__init__(pool, H11Protocol(*arguments, **options))

        return Bounded
