"""envd's process service: what commands.run and its handles use."""

import asyncio
import base64
import signal
import time

KEEP_SECONDS = 30


class Process:
    def __init__(self, pid, spec, tag):
        self.pid, self.spec, self.tag = pid, spec, tag
        self.child = None
        self.subscribers = set()
        self.end = None
        self.ended = asyncio.Event()
        self.ended_at = 0.0

    def publish(self, event):
        for queue in self.subscribers:
            queue.put_nowait(event)

    async def copy(self, stream, name):
        while True:
            data = await stream.read(32 << 10)
            if not data:
                return
            self.publish({"data": {name: base64.b64encode(data).decode()}})

    async def watch(self):
        await asyncio.gather(self.copy(self.child.stdout, "stdout"), self.copy(self.child.stderr, "stderr"))
        code = await self.child.wait()
        # bubblewrap gives 128 + n for a process that died by signal n, as a shell does.
        number = -code if code < 0 else code - 128
        if number in list(signal.Signals):
            end = {"exitCode": -1, "status": "signal: " + signal.strsignal(number).lower(), "error": "signal: killed"}
        else:
            end = {"exited": True, "status": "exit status %d" % code}
            if code:
                end.update(exitCode=code, error="exit status %d" % code)
        self.end = end
        self.ended_at = time.monotonic()
        self.publish({"end": end})
        self.ended.set()


class Processes:
    def __init__(self, sandbox):
        self.sandbox = sandbox
        self.table = {}
        self.last = 100

    def find(self, selector):
        selector = selector or {}
        for process in self.table.values():
            if "pid" in selector and process.pid == int(selector["pid"]):
                return process
            if "tag" in selector and process.tag == selector["tag"]:
                return process
        return None

    def living(self):
        return [process for process in self.table.values() if process.end is None]

    async def start(self, message, cwd):
        spec = message.get("process", {})
        self.last += 1
        process = Process(self.last, spec, message.get("tag"))
        pipe = asyncio.subprocess.PIPE
        wants_stdin = message.get("stdin", True) and "stdin" in message
        env = {**self.sandbox.env, **(spec.get("envs") or {})}
        process.child = await self.sandbox.get_box().spawn(
            [spec.get("cmd", ""), *(spec.get("args") or [])], cwd, env,
            stdin=pipe if wants_stdin else asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe,
        )
        self.table[process.pid] = process
        process.task = asyncio.ensure_future(process.watch())
        for old in [p for p in self.table.values() if p.end and time.monotonic() - p.ended_at > KEEP_SECONDS]:
            del self.table[old.pid]
        return process
