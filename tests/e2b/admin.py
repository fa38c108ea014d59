"""The admin endpoints under /_emulator: journal, faults, settings, and sandboxes behind the client's back."""

import asyncio
import os
import time

import boxes
import sandboxes
import wire


class Admin:
    def __init__(self, emulator):
        self.emulator = emulator
        self.store = emulator.store

    async def serve(self, exchange):
        parts = [part for part in exchange.path.split("/") if part][1:]
        name = "%s_%s" % (exchange.method.lower(), parts[0] if parts else "")
        handler = getattr(self, name, None)
        if handler is None:
            return wire.failure(404, "no such admin endpoint")
        try:
            body = await exchange.json() if exchange.method != "GET" else None
            return await handler(exchange, parts[1:], body)
        except (ValueError, KeyError, TypeError) as error:
            return wire.failure(400, "%s: %s" % (type(error).__name__, error))
        except sandboxes.ApiError as error:
            return wire.failure(error.status, error.message)

    # --- journal, faults, settings ---

    async def get_journal(self, exchange, _parts, _body):
        journal = self.emulator.journal
        entries = journal.since(int(exchange.query.get("since", "0")))
        return wire.answer(200, {"entries": entries, "next": journal.first + len(journal.entries)})

    async def delete_journal(self, _exchange, _parts, _body):
        self.emulator.journal.clear()
        return wire.answer(204)

    async def get_faults(self, _exchange, _parts, _body):
        return wire.answer(200, [rule.view() for rule in self.emulator.faults.rules])

    async def post_faults(self, _exchange, _parts, body):
        specs = body if isinstance(body, list) else [body]
        return wire.answer(201, [self.emulator.faults.add(spec).view() for spec in specs])

    async def delete_faults(self, _exchange, parts, _body):
        rules = self.emulator.faults.rules
        self.emulator.faults.rules = [rule for rule in rules if parts and str(rule.id) != parts[0]]
        return wire.answer(204)

    async def get_settings(self, _exchange, _parts, _body):
        return wire.answer(200, self.store.settings)

    async def patch_settings(self, _exchange, _parts, body):
        odd = set(body) - set(sandboxes.DEFAULTS)
        if odd:
            raise ValueError("no such setting: %s" % ", ".join(sorted(odd)))
        self.store.settings.update(body)
        self.store.fill()
        return wire.answer(200, self.store.settings)

    async def post_reset(self, _exchange, _parts, _body):
        """As if just started: no sandboxes, rules, journal; settings as on the command line."""
        for sandbox in list(self.store.all.values()):
            await self.store.kill(sandbox, "reset")
        self.store.dead.clear()
        self.store.creates.clear()
        self.store.settings.update(self.emulator.first_settings)
        for name in self.store.stats:
            self.store.stats[name] = 0
        self.emulator.faults.rules = []
        self.emulator.journal.clear()
        return wire.answer(204)

    async def get_stats(self, _exchange, _parts, _body):
        states = {}
        for sandbox in self.store.all.values():
            states[sandbox.state] = states.get(sandbox.state, 0) + 1
        return wire.answer(200, {**self.store.stats, "states": states, "connections": wire.Protocol.count,
                                 "places": dict(self.store.places)})

    # --- sandboxes ---

    def view(self, sandbox):
        return {
            "id": sandbox.id, "team": sandbox.team, "state": sandbox.state, "why": sandbox.why,
            "template": sandbox.template, "metadata": sandbox.metadata, "env": sandbox.env,
            "secure": sandbox.secure, "envdAccessToken": sandbox.envd_token,
            "trafficAccessToken": sandbox.traffic_token, "autoPause": sandbox.auto_pause,
            "autoResume": sandbox.auto_resume, "network": sandbox.network, "internet": sandbox.internet,
            "startedAt": sandbox.started_at, "endAt": sandbox.end_at, "ttl": round(sandbox.end_at - time.time(), 3),
            "executions": sandbox.executions,
            "contexts": [context.view() for context in sandbox.server.contexts.values()],
        }

    async def get_sandboxes(self, exchange, parts, _body):
        if not parts:
            wanted = list(self.store.all.values())
            if exchange.query.get("dead"):
                wanted += list(self.store.dead.values())
            return wire.answer(200, [self.view(sandbox) for sandbox in wanted])
        sandbox = self.store.all.get(parts[0]) or self.store.dead.get(parts[0])
        if sandbox is None:
            return wire.failure(404, "no sandbox %s" % parts[0])
        if parts[1:] == ["file"]:
            real = sandbox.get_box().host(exchange.query["path"])[0]
            if not os.path.isfile(real):
                return wire.failure(404, "no file %s" % exchange.query["path"])
            with open(real, "rb") as f:
                return wire.answer(200, f.read(), None, "application/octet-stream")
        return wire.answer(200, self.view(sandbox))

    async def post_sandboxes(self, _exchange, parts, _body):
        """kill: vanishes; pause: by memory; pause-disk: only the disk; expire: as its time were over;
        freeze: stopped but said to run."""
        sandbox = self.store.all[parts[0]]
        action = parts[1]
        if action == "kill":
            await self.store.kill(sandbox, "killed behind the client's back")
        elif action in ("pause", "pause-disk"):
            if sandbox.state != "running":
                raise sandboxes.ApiError(409, "it is %s" % sandbox.state)
            await self.store.pause(sandbox, action == "pause")
        elif action == "expire":
            sandbox.set_end(0)
            await asyncio.sleep(0.01)
        elif action == "freeze":
            sandbox.get_box().freeze()
        elif action == "thaw":
            sandbox.get_box().thaw()
        elif action == "kill-kernel":
            for context in sandbox.server.contexts.values():
                if context.kernel is not None and context.kernel.child is not None:
                    boxes.send_signal(context.kernel.child.pid, 9)
                    await context.kernel.dead.wait()  # who runs next meets the new one
        else:
            raise ValueError("no such action: %s" % action)
        return wire.answer(200, self.view(sandbox))

    async def patch_sandboxes(self, _exchange, parts, body):
        sandbox = self.store.all[parts[0]]
        names = {"startedAt": "started_at", "metadata": "metadata", "autoPause": "auto_pause",
                 "autoResume": "auto_resume"}
        for name, value in body.items():
            if name == "ttl":
                sandbox.set_end(value)
            else:
                setattr(sandbox, names[name], value)
        return wire.answer(200, self.view(sandbox))
