"""A local E2B: control plane, code interpreter and envd on one loopback port. README.md says what it does and doesn't."""

import argparse
import asyncio
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback

import admin
import boxes
import control
import envd
import faults
import sandboxes
import wire
from sandboxes import ApiError

ENVD_PORT, INTERPRETER_PORT = 49983, 49999
ROUTING = ("E2b-Sandbox-Id", "E2b-Sandbox-Port")


class Emulator:
    def __init__(self, folder):
        self.store = sandboxes.Store(folder)
        self.first_settings = dict(self.store.settings)
        self.control = control.Control(self.store)
        self.journal = faults.Journal()
        self.faults = faults.Faults()
        self.admin = admin.Admin(self)
        self.envds = {}

    # --- which service a request is for ---

    def target(self, request):
        """(sandbox id, port) of the data plane, None for the control plane, or an answer."""
        host = request.headers.get("Host", "").partition(":")[0]
        match = re.match(r"^(\d+)-([A-Za-z0-9]+)[^.]*\.", host)
        if match:
            return match.group(2), int(match.group(1))
        given = [request.headers.get(name) for name in ROUTING]
        if not any(given):
            return None
        if not all(given):
            return wire.text(400, "missing header")
        if not re.match(r"^[a-z0-9]+(-[a-z0-9]+)?$", given[0]):
            return wire.text(400, "Invalid sandbox ID")
        if not given[1].isdigit() or not 0 < int(given[1]) < 65536:
            return wire.text(400, "Invalid sandbox port")
        return given[0].partition("-")[0], int(given[1])

    async def handle(self, request):
        exchange = wire.Exchange(request)
        if exchange.path.startswith("/_emulator"):
            return await self.admin.serve(exchange)
        target = self.target(request)
        handler = None
        if isinstance(target, tuple):
            exchange.sandbox_id, port = target
            exchange.plane = {ENVD_PORT: "envd", INTERPRETER_PORT: "interpreter"}.get(port, "port")
            handler = self.name_operation(exchange)
        elif target is None:
            exchange.plane = "control"
            exchange.op, handler, exchange.sandbox_id = self.control.route(exchange)
            target = None
        else:
            exchange.plane = "proxy"
        self.journal.begin(exchange)
        exchange.elapsed = lambda: time.monotonic() - self.journal.started - exchange.entry["t"]
        response = None
        try:
            response = await self.with_faults(exchange, target, handler)
            if not exchange.dropped:
                await response.prepare(request)
                await response.write_eof()
                if exchange.gate.limit is not None and exchange.gate.sent >= exchange.gate.limit:
                    await exchange.gone.wait()
            return response
        except ConnectionError:
            exchange.dropped = True
            return wire.answer(500)
        except Exception:
            traceback.print_exc()
            if exchange.gate.sent:  # in mid-stream: no end of the body
                exchange.close()
            response = wire.answer(500, {"code": 500, "message": "the emulator failed: see its stderr"})
            return response
        finally:
            if exchange.sandbox is not None:
                exchange.sandbox.exchanges.discard(exchange)
            self.journal.end(exchange, response)

    def name_operation(self, exchange):
        """The operation by the path alone: rules may match requests to sandboxes that are not there."""
        sandbox = self.store.all.get(exchange.sandbox_id)
        if exchange.plane == "envd":
            exchange.op, handler = self.envd_of(sandbox).route(exchange) if sandbox else (ENVD_ROUTES(exchange), None)
        elif exchange.plane == "interpreter":
            exchange.op, handler = sandbox.server.route(exchange) if sandbox else (exchange.path[1:], None)
        else:
            handler = None
        return handler

    def envd_of(self, sandbox):
        if sandbox.id not in self.envds:
            self.envds[sandbox.id] = envd.Envd(sandbox)
            for gone in [key for key in self.envds if key not in self.store.all]:
                del self.envds[gone]
        return self.envds[sandbox.id]

    async def with_faults(self, exchange, target, handler):
        rtt = self.store.settings["rtt_ms"]
        if rtt:
            await asyncio.sleep(rtt / 1000)
        spec, rule = self.faults.pick(exchange)
        if rule:
            exchange.entry["fault"] = spec.get("name", rule.id)
            instead = await self.faults.before(exchange, spec)
            if instead is not None:
                return instead
            self.faults.arm(exchange, spec, lambda: self.vanish(exchange))
        exchange.say_continue()
        if target is None:
            response = await self.control.serve(exchange, handler)
        elif isinstance(target, tuple):
            response = await self.data_plane(exchange, *target)
        else:
            response = target
        if rule:
            await self.faults.after(exchange, spec)
            if "instead" in spec:
                return faults.instead(spec["instead"])
        return response

    def vanish(self, exchange):
        sandbox = self.store.all.get(exchange.sandbox_id)
        if sandbox is not None:
            self.store.background(self.store.kill(sandbox, "died by a rule"))

    # --- the proxy before a sandbox ---

    async def data_plane(self, exchange, sandbox_id, port):
        sandbox = self.store.find(sandbox_id)
        if sandbox is None:
            return await self.not_found(exchange, sandbox_id)
        if port != ENVD_PORT and not sandbox.public:
            if exchange.headers.get("E2B-Traffic-Access-Token") != sandbox.traffic_token:
                await exchange.read()
                return wire.answer(403, {"sandboxId": sandbox_id, "message": "traffic access token is missing or invalid",
                                         "code": 403})
        if sandbox.state != "running":
            instead = await self.wake(exchange, sandbox, port)
            if instead is not None:
                return instead
        if port == ENVD_PORT:
            service = self.envd_of(sandbox)
        elif port == INTERPRETER_PORT and self.store.interprets(sandbox.template):
            service = sandbox.server
        else:
            await exchange.read()
            return wire.answer(502, {"sandboxId": sandbox_id, "message": "The sandbox is running but port is not open",
                                     "port": port, "code": 502})
        exchange.sandbox = sandbox
        exchange.keepalive, exchange.timed_out = {}, False
        sandbox.exchanges.add(exchange)
        exchange.op, handler = service.route(exchange)
        return await service.serve(exchange, handler)

    async def not_found(self, exchange, sandbox_id):
        await exchange.read()
        return wire.answer(502, {"sandboxId": sandbox_id, "message": "The sandbox was not found", "code": 502})

    async def wake(self, exchange, sandbox, port):
        """A request to a sandbox that does not run: resumes it where its policy says so."""
        if not sandbox.auto_resume:
            if sandbox.state == "resuming":
                await sandbox.settled.wait()
                return None if sandbox.state == "running" else await self.not_found(exchange, sandbox.id)
            return await self.not_found(exchange, sandbox.id)
        if port == ENVD_PORT and sandbox.envd_token and exchange.headers.get("X-Access-Token") != sandbox.envd_token:
            await exchange.read()
            return wire.answer(403, {"sandboxId": sandbox.id, "message": "access token is missing or invalid", "code": 403})
        if sandbox.state in ("pausing", "resuming"):
            try:
                await asyncio.wait_for(sandbox.settled.wait(), 60)
            except asyncio.TimeoutError:
                await exchange.read()
                return wire.answer(409, {"sandboxId": sandbox.id, "code": 409,
                                         "message": "The sandbox is still transitioning, try again later"})
        if sandbox.state == "paused":
            if not sandbox.has_memory:
                return await self.not_found(exchange, sandbox.id)
            seconds = max(sandbox.timeout, sandboxes.AUTO_RESUME_SECONDS)
            try:
                await self.store.resume(sandbox, min(seconds, self.store.settings["max_ttl_s"]))
            except ApiError as error:
                await exchange.read()
                return wire.answer(error.status, {"sandboxId": sandbox.id, "message": error.message,
                                                  "code": error.status})
        return None if sandbox.state == "running" else await self.not_found(exchange, sandbox.id)


def ENVD_ROUTES(exchange):
    return envd.Envd.route(envd.Envd(None), exchange)[0]


async def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="default: the system chooses")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=JSON", help="a setting, see README.md")
    parser.add_argument("--network", action="store_true", help="sandboxes share the machine's network")
    options = parser.parse_args()
    watcher = asyncio.PidfdChildWatcher()  # the default takes a thread for each process
    watcher.attach_loop(asyncio.get_running_loop())
    asyncio.set_child_watcher(watcher)
    boxes.Box.network = options.network
    folder = tempfile.mkdtemp(prefix="e2b-emulator-")
    emulator = Emulator(folder)
    for text in options.set:
        name, _, value = text.partition("=")
        if name not in sandboxes.DEFAULTS:
            parser.error("no such setting: %s" % name)
        emulator.store.settings[name] = json.loads(value)
    emulator.first_settings = dict(emulator.store.settings)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def wait_for_end():
        sys.stdin.buffer.read()
        loop.call_soon_threadsafe(stop.set)

    threading.Thread(target=wait_for_end, daemon=True).start()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    server = wire.Server(emulator.handle, access_log=None, keepalive_timeout=640, max_field_size=1 << 20,
                         max_line_size=1 << 20)
    listener = await loop.create_server(server, "127.0.0.1", options.port, backlog=4096)
    port = listener.sockets[0].getsockname()[1]
    emulator.store.fill()
    url = "http://127.0.0.1:%d" % port
    print(json.dumps({"url": url, "port": port, "apiUrl": url, "sandboxUrl": url, "admin": url + "/_emulator",
                      "pid": os.getpid()}), flush=True)
    await stop.wait()
    listener.close()
    await emulator.store.close()
    shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())
