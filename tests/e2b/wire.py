"""HTTP at the level the emulator needs: exact bytes, resets, cuts, and the moment a client goes away."""

import asyncio
import json
import socket
import struct

from aiohttp import web
from aiohttp.web_protocol import RequestHandler


class Protocol(RequestHandler):
    """A server connection that tells its exchange when the client is gone."""

    __slots__ = ("gone", "number")
    count = 0

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        Protocol.count += 1
        self.number = Protocol.count
        self.gone = asyncio.Event()

    def connection_lost(self, exc):
        self.gone.set()
        super().connection_lost(exc)


class Server(web.Server):
    def __call__(self):
        return Protocol(self, loop=self._loop, **self._kwargs)


class Cut(ConnectionResetError):
    """What a handler sees when the fault rule of its exchange has cut the answer."""


class Gate:
    """Stands between a response and its connection: counts the bytes, and cuts, stalls or slows them by rule."""

    def __init__(self, exchange):
        self.exchange = exchange
        self.real = exchange.request.protocol
        self.sent = 0
        self.limit = None  # bytes that pass
        self.on_limit = None  # called once when the limit is reached
        self.swallow = False  # beyond the limit writes vanish instead of failing
        self.rate = 0  # bytes a second
        self.owed = 0.0  # seconds to wait by the rate

    @property
    def connected(self):
        return self.real.connected

    @property
    def transport(self):
        return self if self.real.transport is not None else None

    def is_closing(self):
        return self.real.transport is None or self.real.transport.is_closing()

    def write(self, data):
        if self.limit is not None and self.sent + len(data) >= self.limit:
            data = bytes(data)[: max(0, self.limit - self.sent)]
            self.pass_on(data)
            action, self.on_limit = self.on_limit, None
            if action:
                action()
            if not self.swallow:
                raise Cut("cut by rule")
            return
        self.pass_on(data)

    def pass_on(self, data):
        if data:
            self.sent += len(data)
            self.real.transport.write(data)
            if self.rate:
                self.owed += len(data) / self.rate

    def writelines(self, parts):
        self.write(b"".join(parts))

    @property
    def _paused(self):
        """aiohttp 3.11 waits only where this says so."""
        return self.real._paused or self.owed > 0

    async def _drain_helper(self):
        await self.real._drain_helper()
        if self.owed:
            owed, self.owed = self.owed, 0.0
            await asyncio.sleep(owed)


class Exchange:
    """One request and its answer."""

    def __init__(self, request):
        self.request = request
        self.method = request.method
        self.path = request.path
        self.headers = request.headers
        self.gone = request.protocol.gone
        self.gate = Gate(self)
        request._payload_writer._protocol = self.gate
        self.bytes_in = 0
        self.plane = self.op = None
        self.sandbox = None  # the object, once known
        self.sandbox_id = None
        self.entry = None  # in the journal
        self.dropped = False

    @property
    def query(self):
        return self.request.rel_url.query

    async def chunks(self):
        async for chunk in self.request.content.iter_any():
            self.bytes_in += len(chunk)
            yield chunk

    async def read(self):
        return b"".join([chunk async for chunk in self.chunks()])

    async def json(self):
        """The body as a JSON value; None when there is no body. Raises ValueError."""
        raw = await self.read()
        return json.loads(raw) if raw.strip() else None

    def say_continue(self):
        if self.headers.get("Expect", "").lower() == "100-continue":
            self.request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def reset(self):
        """RST: what a client sees when a sandbox stops under its request."""
        self.dropped = True
        transport = self.request.transport
        if transport is None:
            return
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()

    def close(self):
        """FIN without an end of the answer."""
        self.dropped = True
        if self.request.transport is not None:
            self.request.transport.close()

    async def stream(self, status=200, headers=None, content_type=None):
        response = Stream(status=status, headers=headers)
        response.bare = content_type is None
        if content_type:
            response.content_type = content_type
        response.enable_chunked_encoding()
        await response.prepare(self.request)
        if self.entry is not None:
            self.entry["status"] = status
        return response


class Stream(web.StreamResponse):
    """A chunked answer; without Content-Type when bare."""

    bare = False

    async def _prepare_headers(self):
        await super()._prepare_headers()
        if self.bare:
            self._headers.popall("Content-Type", None)


def answer(status, body=None, headers=None, content_type="application/json; charset=utf-8"):
    if body is None:
        return web.Response(status=status, headers=headers)
    if not isinstance(body, (bytes, str)):
        body = json.dumps(body)
    if isinstance(body, str):
        body = body.encode("utf-8", "surrogatepass")
    head = dict(headers or {})
    if content_type:
        head.setdefault("Content-Type", content_type)
    return web.Response(status=status, body=body, headers=head)


def text(status, body, headers=None):
    return answer(status, body, headers, "text/plain; charset=utf-8")


def failure(status, message, code=None, headers=None):
    """An error of the control plane."""
    body = {"code": status, "message": message}
    if code:
        body["error_code"] = code
    return answer(status, body, headers)
