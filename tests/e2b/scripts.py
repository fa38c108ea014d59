"""Scripted runs: /execute answers with the lines, pieces and timings that the code itself gives, without a kernel."""

import asyncio
import base64
import hashlib
import json
import os
import re

import interpreter
import wire

MARK = "#e2b-script:"
SETTINGS_MARKS = ("#sandpiper:", "%%sandpiper-")  # the line before a run's code; the nonce comes behind it
FILES_MIME = "application/vnd.sandpiper.files+json"


def journal_view(code):
    """What tells one run from another, without its text; the settings line differs from try to try."""
    own = code.partition("\n")[2] if code.startswith(SETTINGS_MARKS) else code
    return {
        "sha256": hashlib.sha256(own.encode("utf-8", "surrogatepass")).hexdigest(),
        "size": len(code),
        "head": own[:80],
        "nonce": nonce(code),
    }


def nonce(code):
    for mark in SETTINGS_MARKS:
        if code.startswith(mark):
            return re.split("[: ]", code[len(mark):].partition("\n")[0])[0]
    return None


class Script:
    """The steps of one run; README.md lists them."""

    def __init__(self, steps):
        self.steps = steps

    def refusal(self):
        return bool(self.steps) and ("status" in self.steps[0] or "http" in self.steps[0])

    async def refuse(self, exchange):
        step = self.steps[0]
        if "http" in step:
            exchange.request.transport.write(base64.b64decode(step["http"]))
            for later in self.steps[1:]:
                if "sleep" in later:
                    await asyncio.sleep(later["sleep"] / 1000)
                elif "http" in later and exchange.request.transport is not None:
                    exchange.request.transport.write(base64.b64decode(later["http"]))
                elif later.get("hang"):
                    await exchange.gone.wait()
                elif later.get("reset"):
                    await asyncio.sleep(0.03)
                    exchange.reset()
            exchange.close()
            return wire.answer(500)
        body = step.get("body", "")
        return wire.answer(step["status"], body, step.get("headers"),
                           "text/plain; charset=utf-8" if isinstance(body, str) else "application/json; charset=utf-8")


def find(code):
    """The script in the code: all lines that begin with the mark, one JSON array together; else None."""
    if MARK not in code:
        return None
    lines = [text.strip()[len(MARK):] for text in code.split("\n") if text.strip().startswith(MARK)]
    if not lines:
        return None
    try:
        steps = json.loads("".join(lines))
    except ValueError as problem:
        steps = [{"status": 500, "body": "bad script: %s" % problem}]
    return Script(steps)


class Player:
    def __init__(self, server, exchange, response, context, code):
        self.server, self.exchange, self.response, self.context = server, exchange, response, context
        self.nonce = nonce(code)
        self.split = 0
        self.gap = 0
        self.listing = {"nonce": self.nonce, "files": [], "skipped": [], "cut": False, "exit": None, "error": None}
        self.ended = False

    async def write(self, data):
        if not self.split:
            await self.response.write(data)
            return
        for at in range(0, len(data), self.split):
            await self.response.write(data[at : at + self.split])
            await asyncio.sleep(self.gap / 1000)

    async def line(self, item):
        await self.write(interpreter.line(item))

    async def play(self, steps):
        """False when the script has ended the answer."""
        for step in steps:
            if not await self.step(step):
                return False
        return True

    async def step(self, step):
        server, exchange = self.server, self.exchange
        if "split" in step:
            self.split, self.gap = step["split"], step.get("gap", 0)
        if "line" in step:
            await self.line(step["line"])
        elif "stdout" in step or "stderr" in step:
            name = "stdout" if "stdout" in step else "stderr"
            await self.line({"type": name, "text": step[name], "timestamp": interpreter.stamp(None)})
        elif "raw" in step:
            await self.write(step["raw"].encode("utf-8", "surrogatepass"))
        elif "b64" in step:
            await self.write(base64.b64decode(step["b64"]))
        elif "fill" in step:  # many bytes of one kind
            for at in range(0, step["fill"], 1 << 16):
                await self.write(step.get("with", "x").encode() * min(1 << 16, step["fill"] - at))
        elif "sleep" in step:
            await asyncio.sleep(step["sleep"] / 1000)
        elif "keepalives" in step:
            for _ in range(step["keepalives"]):
                await asyncio.sleep(step.get("every", 5000) / 1000)
                await self.line({"type": "keepalive"})
        elif "repeat" in step:
            for _ in range(step["repeat"]):
                if not await self.play(step["steps"]):
                    return False
        elif "file" in step:
            path = server.sandbox.get_box().host(step["file"])[0]
            os.makedirs(os.path.dirname(path), exist_ok=True)
            data = base64.b64decode(step["data"]) if "data" in step else step.get("text", "").encode()
            with open(path, "wb") as f:
                f.write(data)
            if step["file"].startswith("/home/user/output/"):
                self.listing["files"].append({"path": step["file"][18:], "size": len(data)})
        elif "listing" in step:
            if step["listing"] is None:
                self.listing = None
            elif self.listing is not None:
                self.listing.update(step["listing"])
        elif "end" in step:
            await self.end()
            return False
        elif "eof" in step:
            await self.response.write_eof()
            return False
        elif "reset" in step or "close" in step:
            await asyncio.sleep(0.03)  # what was sent shall arrive
            exchange.reset() if "reset" in step else exchange.close()
            return False
        elif "hang" in step:
            await exchange.gone.wait()
            return False
        elif "kill" in step:
            await asyncio.sleep(0.03)
            await server.sandbox.store.kill(server.sandbox, "killed by a script")
            return False
        elif "pause" in step:
            await server.sandbox.store.pause(server.sandbox)
            return False
        return True

    async def end(self):
        if self.listing is not None and self.nonce and self.server.settings["script_listing"]:
            await self.line({"type": "result", "extra": {FILES_MIME: self.listing}, "is_main_result": False})
        await self.line(interpreter.END)
        await self.response.write_eof()


async def play(server, exchange, response, context, code, script):
    """A run without a script says its number and ends."""
    player = Player(server, exchange, response, context, code)
    steps = script.steps if script is not None else [{"line": {"type": "number_of_executions",
                                                               "execution_count": context.count}}]
    if await player.play(steps):
        await player.end()


