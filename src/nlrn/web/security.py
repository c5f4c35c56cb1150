"""What every request passes first: who may ask, how much may be sent, what the answer allows.

The server works for whoever sits at the browser. Another site that the same browser has open must
not use it: its requests say where they come from. And a name that somebody points at this machine
(DNS rebinding) would make such requests look like our own: so the Host has to be one we know.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import socket
from urllib.parse import urlsplit

from fastapi import HTTPException
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
ANY_ADDRESS = ("0.0.0.0", "::")
MAX_REQUEST_BYTES = 2**16  # bytes of all requests that are no upload
UPLOAD_PATH = "/api/pictures"
DRAIN_TIMEOUT = 0.3  # seconds to wait for more of a body that is refused
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Images are private, and files of the page change with the version.
    "Cache-Control": "no-store",
}


class SecurityMiddleware:
    """Refuses what should not be answered, and adds headers to every answer.

    Args:
        app: what comes behind it.
        host: the address that the server listens on.
        max_bytes: largest upload.
    """

    def __init__(self, app: ASGIApp, host: str, max_bytes: int) -> None:
        self._app, self._host, self._max_bytes = app, host, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        upload = scope["method"] == "POST" and scope["path"] == UPLOAD_PATH
        limit = self._max_bytes if upload else MAX_REQUEST_BYTES
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > limit:
                await _drain(receive, limit)
                raise HTTPException(413, _too_large(limit))
            return message

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refusal = self._refusal(scope, headers)
        if refusal is None and _content_length(headers) > limit:
            refusal = (413, _too_large(limit))
        if refusal is not None:
            await _drain(receive, limit)
            await _refuse(*refusal, with_headers)
        else:
            await self._app(scope, counted, with_headers)

    def _refusal(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if not is_own_host(host, self._host):
            return 421, f"this server does not answer for {host[:60]!r}"
        origin = headers.get("origin")
        if origin is not None and not _is_same_origin(origin, host):
            return 403, f"requests from {origin[:60]!r} are refused"
        # Newer browsers say this even where they send no Origin, as for images in a page.
        site = headers.get("sec-fetch-site", "none")
        opened = headers.get("sec-fetch-mode") == "navigate" and scope["method"] == "GET"
        link_to_page = opened and not scope["path"].startswith("/api/")
        if site not in ("none", "same-origin") and not link_to_page:
            return 403, "requests from other sites are refused"
        return None


def is_own_host(host: str, bound: str) -> bool:
    """Whether a Host header, with or without port, names a server that listens on `bound`."""
    name = host.lower().rpartition("]")[0] + "]" if host.startswith("[") else host.lower()
    name = name if name.startswith("[") else name.partition(":")[0]
    if name in LOCAL_HOSTS or name.strip("[]") == bound.lower():
        return bool(name)
    if bound not in ANY_ADDRESS:
        return False
    try:  # from other machines: by number, which nobody can point elsewhere, or by our name
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return name == socket.gethostname().lower()
    return True


def _is_same_origin(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()


def _content_length(headers: Headers) -> int:
    text = headers.get("content-length", "0")
    return int(text) if text.isdecimal() else 0


def _too_large(limit: int) -> str:
    return f"too large: at most {limit / 2**20:g} MiB can be sent"


async def _drain(receive: Receive, limit: int) -> None:
    """Takes what is on its way: a sender that is cut off in the middle never sees the answer."""
    seen, more = 0, True
    with contextlib.suppress(TimeoutError):
        while more and seen <= 2 * limit:
            message = await asyncio.wait_for(receive(), DRAIN_TIMEOUT)
            seen += len(message.get("body", b""))
            more = bool(message.get("more_body", False))


async def _refuse(status: int, text: str, send: Send) -> None:
    body = json.dumps({"error": text}).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
