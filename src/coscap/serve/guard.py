"""What holds for every request: who may ask, headers that keep a browser careful, and the count of it."""

import hmac
import json
import time
from collections.abc import Collection
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coscap.serve.telemetry import Telemetry

LOOPBACK = ("127.0.0.1", "localhost", "::1")
OPEN = frozenset({"/", "/health", "/docs", "/openapi.json"})  # what needs no token, besides the examples

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """An ASGI middleware around the whole application."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        telemetry: Telemetry,
        policy: str,
        token: str | None = None,
        hosts: Collection[str] = (),
        free: Collection[str] = OPEN,
    ) -> None:
        self._app = app
        self._telemetry = telemetry
        self._token = token.encode() if token else None
        self._hosts = frozenset(host.lower() for host in hosts)
        self._free = frozenset(free)
        self._headers = {**HEADERS, "Content-Security-Policy": policy}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        began = time.perf_counter()
        status = 500

        async def send_careful(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given = {name.lower() for name, _ in message["headers"]}
                extra = [(k.lower().encode(), v.encode()) for k, v in self._headers.items()]
                message["headers"] = [
                    *message["headers"],
                    *((name, value) for name, value in extra if name not in given),
                ]
            await send(message)

        try:
            refusal = self._refusal(scope)
            if refusal:
                await _answer(send_careful, *refusal)
            else:
                await self._app(scope, receive, send_careful)
        finally:
            path = _label(scope)
            self._telemetry.requests.labels(path, str(status)).inc()
            self._telemetry.seconds.labels(path).observe(time.perf_counter() - began)

    def _refusal(self, scope: Scope) -> tuple[int, str, dict[str, str]] | None:
        headers = dict(scope["headers"])
        if self._hosts and _host(headers.get(b"host", b"")) not in self._hosts:
            # Otherwise a page elsewhere, whose name was made to mean this machine, could read our answers.
            return 421, "This server is not known by that name; start it with --allow-host NAME.", {}
        if scope["method"] == "POST" and headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site"):
            return 403, "Pages of other sites may not ask this server.", {}
        if self._token and scope["path"] not in self._free and not scope["path"].startswith("/examples"):
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, b"Bearer " + self._token):
                sentence = "This server wants its token; send the header Authorization: Bearer TOKEN."
                return 401, sentence, {"WWW-Authenticate": "Bearer"}
        return None


def _host(header: bytes) -> str:
    """The name in a Host header, without its port."""
    text = header.decode("latin-1").lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0]


def _label(scope: Scope) -> str:
    """The path as one of a few, so that strangers cannot fill the memory with metrics."""
    route: Any = scope.get("route")
    return getattr(route, "path", None) or "other"


async def _answer(send: Send, status: int, sentence: str, headers: dict[str, str]) -> None:
    body = json.dumps({"error": sentence}).encode()
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    raw += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
