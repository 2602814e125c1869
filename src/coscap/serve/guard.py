"""What holds for every request: who may ask and how often, careful headers, an id, a log line, metrics."""

import asyncio
import hmac
import json
import math
import re
import secrets
import time
from collections.abc import Collection, Sequence
from ipaddress import IPv6Address, ip_address
from typing import Any
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coscap.serve.connections import CONNECTION
from coscap.serve.limits import Clients, Limits
from coscap.serve.telemetry import Telemetry, log_request

LOOPBACK = ("127.0.0.1", "localhost", "::1")
OPEN = frozenset(
    {"/", "/health", "/ready", "/docs", "/openapi.json"}
)  # what needs no token, besides the examples

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
PAUSE = 0.5  # seconds without a byte, after which a body that nobody needs is not waited for
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
Refusal = tuple[int, str, dict[str, str]]  # status, sentence, headers


class Guard:
    """An ASGI middleware around the whole application."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        telemetry: Telemetry,
        limits: Limits,
        policy: str,
        tokens: Sequence[str] = (),
        hosts: Collection[str] = (),
        free: Collection[str] = OPEN,
    ) -> None:
        self._app = app
        self._telemetry = telemetry
        self._limits = limits
        self._clients = Clients(limits)
        self._tokens = [token.encode() for token in tokens]
        self._hosts = frozenset(host.lower() for host in hosts)
        self._free = frozenset(free)
        self._headers = {**HEADERS, "Content-Security-Policy": policy}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        request = _Request(scope, receive, send, self._headers, self._limits)
        connection = CONNECTION.get()
        if connection is not None:
            connection.begin_request()
            connection.reading = request.body_comes
        try:
            await self._answer(scope, request)
        finally:
            if connection is not None:
                connection.end_request()
            path = _label(scope)
            self._telemetry.requests.labels(path, str(request.status)).inc()
            self._telemetry.seconds.labels(path).observe(request.seconds)
            log_request(
                id=request.id,
                client=_address(scope),
                method=scope["method"] if scope["method"].isalpha() else "?",
                path=path,
                status=request.status,
                bytes_in=request.bytes_in,
                bytes_out=request.bytes_out,
                ms=round(request.seconds * 1000, 1),
            )

    async def _answer(self, scope: Scope, request: "_Request") -> None:
        client, refusal = self._admit(scope)
        if refusal is not None:
            return await _refuse(request.send, refusal)
        if scope["method"] != "POST":
            return await self._app(scope, request.receive, request.send)
        with self._clients.request(client) as wait:
            if wait:
                seconds = str(math.ceil(wait))
                sentence = f"This client asks too often; wait {seconds} seconds."
                return await _refuse(request.send, (429, sentence, {"Retry-After": seconds}))
            await self._app(scope, request.receive, request.send)

    def _admit(self, scope: Scope) -> tuple[str, Refusal | None]:
        """The client (its token or its address), and why it is refused, if it is."""
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").lower()
        client = _address(scope)
        if self._hosts and _name(host) not in self._hosts:
            # Otherwise a page elsewhere, whose name was made to mean this machine, could read our answers.
            sentence = "This server is not known by that name; start it with --allow-host NAME."
            return client, (421, sentence, {})
        if scope["method"] == "POST" and _foreign(headers, host):
            return client, (403, "Pages of other sites may not ask this server.", {})
        if self._tokens and scope["path"] not in self._free and not scope["path"].startswith("/examples"):
            given = headers.get(b"authorization", b"")
            # All are compared, so that the time does not tell which one was near.
            equal = [hmac.compare_digest(given, b"Bearer " + token) for token in self._tokens]
            if not any(equal):
                sentence = "This server needs a token; send the header Authorization: Bearer TOKEN."
                return client, (401, sentence, {"WWW-Authenticate": "Bearer"})
            client = f"token {equal.index(True)}"
        return client, None


class _Request:
    """The two channels of a request, with an id, counted bytes, careful headers and a deadline for the reader."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, headers: dict[str, str], limits: Limits
    ) -> None:
        sent = dict(scope["headers"])
        given = sent.get(b"x-request-id", b"").decode("latin-1")
        self.id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        scope.setdefault("state", {})["request_id"] = self.id
        self.status = 500
        self.bytes_in = self.bytes_out = 0
        self._receive = receive
        self._send = send
        self._headers = {**headers, "X-Request-ID": self.id}
        self._limits = limits
        self.body_comes = sent.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in sent
        self._body_waits = sent.get(b"expect", b"").lower() == b"100-continue"  # until it is asked for
        self._began = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began

    async def receive(self) -> Message:
        message = await self._receive()
        self.bytes_in += len(message.get("body", b""))
        self.body_comes = self.body_comes and bool(message.get("more_body"))
        connection = CONNECTION.get()
        if connection is not None:
            connection.reading = self.body_comes
        self._body_waits = False
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            await self._discard_body()
            self.status = message["status"]
            given = {name.lower() for name, _ in message["headers"]}
            more = [(name.lower().encode(), value.encode()) for name, value in self._headers.items()]
            missing = [(name, value) for name, value in more if name not in given]
            message = {**message, "headers": [*message["headers"], *missing]}
        self.bytes_out += len(message.get("body", b""))
        try:
            async with asyncio.timeout(self._limits.seconds):
                await self._send(message)
        except TimeoutError:  # the client does not read its answer
            connection = CONNECTION.get()
            if connection is not None:
                connection.abort()

    async def _discard_body(self) -> None:
        """Read what is left of the body, within bounds: a client (or proxy) that still writes does not see an answer.

        It is not waited for a body that does not come.
        """
        try:
            async with asyncio.timeout(self._limits.header_seconds):
                while self.body_comes and not self._body_waits and self.bytes_in <= 2 * self._limits.bytes:
                    async with asyncio.timeout(PAUSE):
                        await self.receive()
        except TimeoutError:
            return


def _foreign(headers: dict[bytes, bytes], host: str) -> bool:
    """Whether a browser says that a page of another site asks."""
    if headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site"):
        return True
    origin = headers.get(b"origin")
    return origin is not None and _netloc(origin) != host


def _netloc(origin: bytes) -> str | None:
    try:
        return urlsplit(origin.decode("latin-1").lower()).netloc or None
    except ValueError:
        return None


def _name(host: str) -> str:
    """The name in a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _address(scope: Scope) -> str:
    """The client's address; of IPv6 the network, for a client has as many addresses as it likes."""
    given = (scope.get("client") or ("unknown", 0))[0]
    try:
        address = ip_address(given)
    except ValueError:
        return "unknown"
    if isinstance(address, IPv6Address) and not address.ipv4_mapped:
        return f"{IPv6Address(int(address) >> 64 << 64)}/64"
    return str(address)


def _label(scope: Scope) -> str:
    """The path as one of a few, so that strangers can fill neither the metrics nor the log with what they like."""
    route: Any = scope.get("route")
    return getattr(route, "path", None) or "other"


async def _refuse(send: Send, refusal: Refusal) -> None:
    status, sentence, headers = refusal
    body = json.dumps({"error": sentence}).encode()
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    raw += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
