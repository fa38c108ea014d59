"""The sandboxes: their states, the clock of their lives, limits, and what the list endpoint sees of them."""

import asyncio
import hashlib
import hmac
import os
import secrets
import shutil
import string
import time

import boxes
import interpreter

INTERPRETER_TEMPLATES = {"code-interpreter-v1", "scripted"}
TEMPLATES = INTERPRETER_TEMPLATES | {"base", "mcp-gateway"}
ENVD_VERSION = "0.6.13"
CLIENT_ID = "6532622b"
AUTO_RESUME_SECONDS = 300

DEFAULTS = {
    "rtt_ms": 0,  # added to each request
    "create_ms": 0,
    "resume_ms": 0,
    "pause_ms": 0,
    "max_concurrent": 1000,
    "release_lag_ms": 0,  # a freed place counts for so long
    "create_rate": 0,  # creates a second, 0 = any
    "retry_after": "1",  # header of the rate limiter, None = without it
    "max_ttl_s": 86400,
    "list_lag_ms": 0,  # the list shows the past
    "loose_filter": False,  # True: metadata is ignored; "prefix", "case": matched so
    "refuse_ttl": False,  # True, or a list of ids: /timeout answers 400
    "pause_failure": None,  # "refuse": 503, nothing changes; "lose": 500, gone; "stale": 500, an older disk remains
    "rotate_tokens": False,  # each connect gives new tokens
    "keepalive_s": 5,
    "death_ms": 500,  # from a kernel's death to its ContextRestarting
    "hang_after_death": False,
    "after_interrupt": "works",  # what a run meets that comes while the kernel unwinds: works, aborted, hangs
    "lose_interrupts": 0,  # of the next ones; as one is that comes before the cell has begun
    "warm": 0,  # kernels started in advance
    "scripted": False,  # no sandbox gets a kernel
    "script_listing": True,  # scripted runs answer a settings line as the prepared kernel does
    "templates": [],  # further template names with the code interpreter
    "snapshots": False,  # each pause keeps a copy of the home for pause_failure "stale"
    "keep_dead": 2000,  # killed sandboxes that the admin endpoint still knows
}


class ApiError(Exception):
    def __init__(self, status, message, code=None, headers=None):
        super().__init__(message)
        self.status, self.message, self.code, self.headers = status, message, code, headers


class Sandbox:
    """States: running <-> paused by way of pausing and resuming; each of them -> killing -> dead."""

    def __init__(self, store, team, spec):
        alphabet = string.ascii_lowercase + string.digits
        self.id = "i" + "".join(secrets.choice(alphabet) for _ in range(20))
        self.store, self.team = store, team
        self.template = spec["template"]
        self.metadata = spec["metadata"]
        self.env = spec["env"]
        self.secure = spec["secure"]
        self.auto_pause = spec["auto_pause"]
        self.pause_memory = spec["pause_memory"]
        self.auto_resume = spec["auto_resume"]
        self.internet = spec["internet"]
        self.network = spec["network"]
        self.timeout = spec["timeout"]
        self.public = self.network.get("allowPublicTraffic", True) is not False
        self.generation = 0
        self.envd_token = self.traffic_token = None
        self.make_tokens()
        self.scripted = self.template.startswith("scripted") or store.settings["scripted"]
        self.box = None
        self.server = interpreter.Interpreter(self)
        self.processes = {}
        self.exchanges = set()
        self.watchers = {}
        self.seen = []  # (time, state) for the lagging list
        self.settled = asyncio.Event()
        self.settled.set()
        self.timer = None
        self.has_memory = True
        self.executions = 0
        self.why = None
        self.state = None
        self.started_at = self.end_at = 0.0

    def make_tokens(self):
        def token(kind):
            name = "%s:%s:%d" % (kind, self.id, self.generation)
            return hmac.new(self.store.secret, name.encode(), hashlib.sha256).hexdigest()

        self.envd_token = token("envd") if self.secure else None
        self.traffic_token = None if self.public else token("traffic")

    def enter(self, state):
        """The one place where a sandbox changes its state."""
        self.state = state
        self.seen.append((time.monotonic(), state))
        if state in ("pausing", "resuming", "killing"):
            self.settled.clear()
        else:
            self.settled.set()

    def set_end(self, seconds):
        self.end_at = time.time() + seconds
        if self.timer:
            self.timer.cancel()
        self.timer = asyncio.get_running_loop().call_later(max(0, seconds), self.expire)

    def expire(self):
        if self.state == "running":
            task = self.store.pause(self, self.pause_memory) if self.auto_pause else self.store.kill(self, "expired")
            self.store.background(task)

    def get_box(self):
        if self.box is None:
            self.box = self.store.new_box()
        return self.box

    def reset_connections(self):
        for exchange in list(self.exchanges):
            exchange.reset()


class Store:
    def __init__(self, folder):
        self.folder = folder
        self.shared = os.path.join(folder, "shared")
        os.makedirs(self.shared)
        self.settings = dict(DEFAULTS)
        self.secret = secrets.token_bytes(16)
        self.all = {}
        self.dead = {}
        self.places = {}  # team -> places taken
        self.creates = {}  # team -> times of creates
        self.boxes = 0
        self.warm = []  # (box, kernel)
        self.tasks = set()
        self.stats = {"created": 0, "resumed": 0, "paused": 0, "killed": 0, "most_running": 0}

    def background(self, coroutine):
        task = asyncio.ensure_future(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def new_box(self):
        self.boxes += 1
        return boxes.Box(os.path.join(self.folder, "s%d" % self.boxes), self.shared)

    # --- warm kernels ---

    def fill(self):
        while len(self.warm) < self.settings["warm"]:
            box = self.new_box()
            self.warm.append((box, interpreter.new_kernel(box)))

    def adopt(self, sandbox):
        if self.warm and not sandbox.scripted and self.interprets(sandbox.template):
            sandbox.box, kernel = self.warm.pop(0)
            sandbox.server.adopt(kernel)
            self.fill()

    # --- limits ---

    def take_place(self, team):
        taken = self.places.get(team, 0)
        limit = self.settings["max_concurrent"]
        if taken >= limit:
            raise ApiError(429, "you have reached the maximum number of concurrent E2B sandboxes (%d). If you need more, "
                                "please contact us" % limit)
        self.places[team] = taken + 1
        self.stats["most_running"] = max(self.stats["most_running"], taken + 1)

    def free_place(self, team):
        def free():
            self.places[team] -= 1

        lag = self.settings["release_lag_ms"] / 1000
        if lag:
            asyncio.get_running_loop().call_later(lag, free)
        else:
            free()

    def check_rate(self, team):
        rate = self.settings["create_rate"]
        now = time.monotonic()
        times = [t for t in self.creates.get(team, []) if now - t < 1]
        if rate and len(times) >= rate:
            headers = {"RateLimit-Limit": str(rate), "RateLimit-Remaining": "0", "RateLimit-Reset": "1"}
            if self.settings["retry_after"] is not None:
                headers["Retry-After"] = str(self.settings["retry_after"])
            raise ApiError(429, "Rate limit exceeded", None, headers)
        self.creates[team] = times + [now]

    # --- life ---

    def interprets(self, template):
        return (template in INTERPRETER_TEMPLATES or template.startswith("scripted")
                or template in self.settings["templates"])

    def known_template(self, template):
        return template in TEMPLATES or self.interprets(template)

    def find(self, sandbox_id, team=None):
        """Living, and (for the control plane) of this team; else None."""
        sandbox = self.all.get(sandbox_id)
        if sandbox is None or sandbox.state == "killing" or (team is not None and sandbox.team != team):
            return None
        return sandbox

    async def create(self, team, spec):
        self.check_rate(team)
        self.take_place(team)
        if self.settings["create_ms"]:
            await asyncio.sleep(self.settings["create_ms"] / 1000)
        sandbox = Sandbox(self, team, spec)
        self.adopt(sandbox)
        sandbox.started_at = time.time()
        sandbox.enter("running")
        sandbox.set_end(spec["timeout"])
        self.all[sandbox.id] = sandbox
        self.stats["created"] += 1
        return sandbox

    async def resume(self, sandbox, seconds, memory=True):
        """From paused. Others that want the same wait for `settled`."""
        self.take_place(sandbox.team)
        sandbox.enter("resuming")
        if self.settings["resume_ms"]:
            await asyncio.sleep(self.settings["resume_ms"] / 1000)
        if sandbox.state != "resuming":
            raise ApiError(409, "sandbox %s is being killed" % sandbox.id)
        if not sandbox.has_memory or not memory:
            await sandbox.server.forget()
            sandbox.has_memory = True
        if sandbox.box is not None:
            sandbox.box.thaw()
        sandbox.started_at = time.time()
        sandbox.enter("running")
        sandbox.set_end(seconds)
        self.stats["resumed"] += 1

    async def pause(self, sandbox, memory=True):
        mode = self.settings["pause_failure"]
        if mode == "refuse":
            raise ApiError(503, "sandbox cannot be paused right now", "sandbox_capacity_unavailable")
        sandbox.enter("pausing")
        if self.settings["pause_ms"]:
            await asyncio.sleep(self.settings["pause_ms"] / 1000)
        if sandbox.state != "pausing":
            return
        sandbox.reset_connections()
        if mode == "lose":
            await self.kill(sandbox, "lost in a pause")
            raise ApiError(500, "error pausing sandbox")
        if sandbox.timer:
            sandbox.timer.cancel()
        if sandbox.box is not None:
            sandbox.box.freeze()
            if not memory:
                sandbox.box.kill()
            if mode == "stale":
                self.restore_disk(sandbox)
                memory = False
            else:
                await self.save_disk(sandbox)
        sandbox.has_memory = memory
        sandbox.end_at = time.time()
        sandbox.enter("paused")
        self.stats["paused"] += 1
        self.free_place(sandbox.team)
        if mode == "stale":
            raise ApiError(500, "error pausing sandbox")

    async def save_disk(self, sandbox):
        if self.settings["snapshots"]:
            home, saved = os.path.join(sandbox.box.root, "home/user"), os.path.join(sandbox.box.folder, "snapshot")
            shutil.rmtree(saved, ignore_errors=True)
            shutil.copytree(home, saved, symlinks=True)

    def restore_disk(self, sandbox):
        home, saved = os.path.join(sandbox.box.root, "home/user"), os.path.join(sandbox.box.folder, "snapshot")
        sandbox.box.kill()
        if os.path.isdir(saved):
            shutil.rmtree(home)
            shutil.copytree(saved, home, symlinks=True)

    async def kill(self, sandbox, why):
        if sandbox.state in ("killing", "dead"):
            return
        holds_place = sandbox.state != "paused"
        sandbox.enter("killing")
        sandbox.why = why
        if sandbox.timer:
            sandbox.timer.cancel()
        sandbox.reset_connections()
        if holds_place:
            self.free_place(sandbox.team)
        self.all.pop(sandbox.id, None)
        self.dead[sandbox.id] = sandbox
        while len(self.dead) > self.settings["keep_dead"]:
            self.dead.pop(next(iter(self.dead)))
        self.stats["killed"] += 1
        sandbox.end_at = time.time()
        sandbox.enter("dead")
        self.background(self.bury(sandbox))

    async def bury(self, sandbox):
        await sandbox.server.close()
        if sandbox.box is not None:
            await sandbox.box.destroy()

    async def close(self):
        for sandbox in list(self.all.values()):
            await self.kill(sandbox, "the emulator ends")
        for box, kernel in self.warm:
            self.background(self.bury_warm(box, kernel))
        self.warm = []
        while self.tasks:
            await asyncio.wait(list(self.tasks), timeout=5)

    async def bury_warm(self, box, kernel):
        await kernel.kill()
        await box.destroy()

    # --- what the list sees ---

    def listed(self, team):
        """(sandbox, state) as the list index has it: now, or some time ago."""
        lag = self.settings["list_lag_ms"] / 1000
        then = time.monotonic() - lag
        pool = list(self.all.values()) + (list(self.dead.values()) if lag else [])
        for sandbox in pool:
            if sandbox.team != team:
                continue
            state = None
            for when, seen in sandbox.seen:
                if when <= then:
                    state = seen
            shown = {"running": "running", "resuming": "running", "pausing": "paused", "paused": "paused"}.get(state)
            if shown:
                yield sandbox, shown

    def matches(self, sandbox, wanted):
        loose = self.settings["loose_filter"]
        if loose is True:
            return True
        for key, value in wanted.items():
            have = sandbox.metadata.get(key)
            if have is None:
                return False
            if loose == "prefix" and have.startswith(value):
                continue
            if loose == "case" and have.lower() == value.lower():
                continue
            if have != value:
                return False
        return True
