"""The journal of all requests, and the faults that are injected into them."""

import asyncio
import base64
import random
import re
import time

import wire

HEADERS = (
    "content-type", "content-length", "transfer-encoding", "expect", "user-agent", "accept", "x-api-key",
    "x-access-token", "e2b-traffic-access-token", "e2b-sandbox-id", "e2b-sandbox-port", "connect-protocol-version",
    "connect-timeout-ms", "authorization", "range",
)


class Journal:
    def __init__(self):
        self.started = time.monotonic()
        self.entries = []
        self.first = 0  # sequence number of the first entry kept

    def begin(self, exchange):
        entry = {
            "seq": self.first + len(self.entries),
            "t": round(time.monotonic() - self.started, 4),
            "time": int(time.time() * 1000),
            "connection": exchange.request.protocol.number,
            "plane": exchange.plane,
            "op": exchange.op,
            "method": exchange.method,
            "path": exchange.request.raw_path,
            "sandbox": exchange.sandbox_id,
            "headers": {name: exchange.headers[name] for name in HEADERS if name in exchange.headers},
            "status": None,
            "ms": None,
            "bytesIn": 0,
            "bytesOut": 0,
        }
        exchange.entry = entry
        self.entries.append(entry)

    def end(self, exchange, response):
        entry = exchange.entry
        if response is not None and not exchange.dropped:
            entry["status"] = response.status
        entry["dropped"] = exchange.dropped or exchange.gone.is_set()
        entry["ms"] = round((time.monotonic() - self.started - entry["t"]) * 1000, 1)
        entry["sandbox"] = exchange.sandbox_id
        entry["bytesIn"], entry["bytesOut"] = exchange.bytes_in, exchange.gate.sent

    def since(self, seq):
        return self.entries[max(0, seq - self.first):]

    def clear(self):
        self.first += len(self.entries)
        self.entries = []


class Rule:
    """One fault: which requests it takes (`match`), how many (`times`, 0 = no end), and what it does."""

    count = 0
    known = {
        "match", "times", "skip", "probability", "delay_ms", "status", "body", "headers", "reset", "close", "garbage",
        "hang", "lose", "instead", "after_delay_ms", "cut", "cut_by", "stall", "kill_after", "kill_delay_ms", "throttle", "name",
    }

    def __init__(self, spec):
        unknown = set(spec) - self.known
        if unknown:
            raise ValueError("unknown: %s" % ", ".join(sorted(unknown)))
        Rule.count += 1
        self.id = Rule.count
        self.spec = spec
        self.times = spec.get("times", 1)
        self.skip = spec.get("skip", 0)
        self.hits = 0
        match = spec.get("match", {})
        odd = set(match) - {"plane", "op", "method", "path", "sandbox", "body"}
        if odd:
            raise ValueError("unknown in match: %s" % ", ".join(sorted(odd)))
        self.path = re.compile(match["path"]) if "path" in match else None
        self.match = match

    def takes(self, exchange, chance):
        match = self.match
        if self.times and self.hits >= self.times:
            return False
        for name in ("plane", "op", "method"):
            wanted = match.get(name)
            if wanted is None:
                continue
            value = getattr(exchange, name)
            if value not in wanted if isinstance(wanted, list) else value != wanted:
                return False
        if "sandbox" in match and match["sandbox"] != exchange.sandbox_id:
            return False
        if self.path is not None and not self.path.search(exchange.request.raw_path):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        if chance.random() >= self.spec.get("probability", 1):
            return False
        self.hits += 1
        return True

    def view(self):
        return {"id": self.id, "hits": self.hits, **self.spec}


class Faults:
    def __init__(self):
        self.rules = []
        self.chance = random.Random(1)

    def add(self, spec):
        rule = Rule(spec)
        self.rules.append(rule)
        return rule

    def pick(self, exchange):
        for rule in self.rules:
            if rule.takes(exchange, self.chance):
                return rule.spec, rule
        return {}, None

    async def before(self, exchange, spec):
        """What happens instead of the handler: an answer, or None to go on."""
        if spec.get("delay_ms"):
            if await wait_gone(exchange, spec["delay_ms"] / 1000):
                return wire.answer(499)
        if "status" in spec:
            await exchange.read()
            return instead(spec)
        if spec.get("reset"):
            exchange.reset()
        elif spec.get("close"):
            exchange.close()
        elif "garbage" in spec:
            exchange.request.transport.write(base64.b64decode(spec["garbage"]))
            exchange.close()
        elif spec.get("hang"):
            await exchange.gone.wait()
        else:
            return None
        return wire.answer(500)

    def arm(self, exchange, spec, vanish):
        """Prepares the connection for what shall happen in the middle of the answer."""
        gate = exchange.gate
        gate.rate = spec.get("throttle", 0)
        if "cut" in spec:
            gate.limit = spec["cut"]
            gate.on_limit = lambda: later(0.03, exchange.reset if spec.get("cut_by") == "reset" else exchange.close)
            gate.swallow = True
        elif "stall" in spec:
            gate.limit, gate.swallow = spec["stall"], True
        elif "kill_after" in spec:
            gate.limit, gate.swallow = spec["kill_after"], True
            gate.on_limit = lambda: later(0.03, vanish)
        if "kill_delay_ms" in spec:
            later(spec["kill_delay_ms"] / 1000, vanish)

    async def after(self, exchange, spec):
        """What happens to a finished answer."""
        if spec.get("after_delay_ms"):
            await wait_gone(exchange, spec["after_delay_ms"] / 1000)
        if spec.get("lose"):
            if spec["lose"] == "hang":
                await exchange.gone.wait()
            exchange.reset()


def instead(spec):
    body = spec.get("body", {"code": spec["status"], "message": "injected"})
    return wire.answer(spec["status"], body, spec.get("headers"),
                       "text/plain" if isinstance(body, str) else "application/json; charset=utf-8")


async def wait_gone(exchange, seconds):
    """Waits; True at once when the client goes away."""
    try:
        await asyncio.wait_for(exchange.gone.wait(), seconds)
        return True
    except asyncio.TimeoutError:
        return False


def later(seconds, call):
    asyncio.get_running_loop().call_later(seconds, call)
