"""The control plane: /sandboxes and /v2/sandboxes."""

import base64
import datetime
import re
from urllib.parse import unquote_plus

import sandboxes
import wire
from sandboxes import ApiError

ID = re.compile(r"^([a-z0-9]+)(-[a-z0-9]+)?$")
KEY = re.compile(r"^e2b_[0-9a-f]+$")


def rfc3339(seconds):
    return datetime.datetime.utcfromtimestamp(seconds).isoformat(timespec="microseconds") + "Z"


class Control:
    def __init__(self, store):
        self.store = store

    def route(self, exchange):
        """(op, handler, sandbox id or None)"""
        parts = [part for part in exchange.path.split("/") if part]
        v2 = parts[:1] == ["v2"]
        if v2:
            parts = parts[1:]
        method = exchange.method
        if parts[:1] != ["sandboxes"] or len(parts) > 3:
            return None, None, None
        if len(parts) == 1:
            if method == "POST":
                return "create", self.create_v2 if v2 else self.create_v1, None
            if method == "GET":
                return "list", self.list_v2 if v2 else self.list_v1, None
        if len(parts) == 2 and not v2:
            ops = {"GET": ("get", self.get), "DELETE": ("kill", self.kill)}
            return (*ops.get(method, (None, None)), parts[1])
        if len(parts) == 3:
            key = (method, parts[2])
            ops = {
                ("POST", "connect"): ("connect", self.connect_v2 if v2 else self.connect_v1),
                ("POST", "resume"): ("resume", self.resume),
                ("POST", "pause"): ("pause", self.pause),
                ("POST", "timeout"): ("timeout", self.timeout),
                ("POST", "refreshes"): ("refreshes", self.refreshes),
                ("PUT", "network"): ("network", self.network),
                ("GET", "metrics"): ("metrics", self.metrics),
            }
            if not v2 or parts[2] == "connect":
                return (*ops.get(key, (None, None)), parts[1])
        return None, None, None

    async def serve(self, exchange, handler):
        try:
            if handler is None:
                await exchange.read()
                raise ApiError(404, "no matching operation was found")
            team = self.authorize(exchange)
            body = {}
            if exchange.method in ("POST", "PUT"):
                try:
                    body = await exchange.json()
                except ValueError as error:
                    raise ApiError(400, "validation error: request body has an error: %s" % error) from error
                if body is not None and not isinstance(body, dict):
                    raise ApiError(400, "validation error: request body has an error: an object is wanted")
                exchange.entry["body"] = body
            if exchange.sandbox_id is not None:
                match = ID.match(exchange.sandbox_id)
                if not match:
                    raise ApiError(400, "Invalid sandbox ID")
                exchange.sandbox_id = match.group(1)
            return await handler(exchange, team, body)
        except ApiError as error:
            return wire.failure(error.status, error.message, error.code, error.headers)

    def authorize(self, exchange):
        key = exchange.headers.get("X-API-KEY", "")
        if not key:
            raise ApiError(401, "authorization header is missing")
        if not KEY.match(key):
            raise ApiError(401, "Invalid API key, please visit https://e2b.dev/docs/api-key to get your API key.")
        return key

    def find(self, exchange, team):
        sandbox = self.store.find(exchange.sandbox_id, team)
        if sandbox is None:
            raise self.missing(exchange.sandbox_id)
        return sandbox

    def missing(self, sandbox_id):
        return ApiError(404, "Sandbox \"%s\" doesn't exist or you don't have access to it" % sandbox_id)

    # --- create ---

    async def create_v1(self, exchange, team, body):
        return await self.create(exchange, team, body, 15, body is not None and body.get("secure") is True)

    async def create_v2(self, exchange, team, body):
        return await self.create(exchange, team, body, 300, True)

    async def create(self, exchange, team, body, default, secure):
        body = body or {}
        template = body.get("templateID")
        if not isinstance(template, str) or not template:
            raise ApiError(400, "validation error: property \"templateID\" is missing")
        for name in ("metadata", "envVars"):
            value = body.get(name) or {}
            if not isinstance(value, dict) or any(not isinstance(v, str) for v in value.values()):
                raise ApiError(400, "validation error: %s must be a map of strings" % name)
        timeout = self.seconds(body.get("timeout", default))
        if timeout <= 0:
            raise ApiError(400, "Timeout must be greater than 0")
        network = body.get("network") or {}
        if network.get("allowPublicTraffic") is False and not secure:
            raise ApiError(400, "network.allowPublicTraffic=false requires a secure sandbox")
        allowed = network.get("allowOut") or []
        if any(not re.match(r"^[0-9./:a-f]+$", host) for host in allowed):
            if "0.0.0.0/0" not in (network.get("denyOut") or []):
                raise ApiError(400, "allowOut with domains needs denyOut to contain 0.0.0.0/0")
        auto_resume = (body.get("autoResume") or {}).get("enabled") is True
        pause_memory = body.get("autoPauseMemory", True) is not False
        if not pause_memory and (auto_resume or not body.get("autoPause")):
            raise ApiError(400, "autoPauseMemory=false needs autoPause and excludes autoResume")
        alias = template.rpartition("/")[2].partition(":")[0]
        if not self.store.known_template(alias):
            raise ApiError(404, "template '%s' not found" % template)
        sandbox = await self.store.create(team, {
            "template": alias,
            "metadata": dict(body.get("metadata") or {}),
            "env": dict(body.get("envVars") or {}),
            "secure": secure,
            "auto_pause": body.get("autoPause") is True,
            "pause_memory": pause_memory,
            "auto_resume": auto_resume,
            "internet": body.get("allow_internet_access", True) is not False,
            "network": network,
            "timeout": timeout,
        })
        exchange.sandbox, exchange.sandbox_id = sandbox, sandbox.id
        return wire.answer(201, self.handle(sandbox))

    def seconds(self, value):
        if not isinstance(value, int) or isinstance(value, bool):
            raise ApiError(400, "validation error: timeout must be an integer")
        if value > self.store.settings["max_ttl_s"]:
            raise ApiError(400, "Timeout cannot be greater than %d hours" % (self.store.settings["max_ttl_s"] // 3600))
        return value

    def handle(self, sandbox):
        out = {
            "templateID": sandbox.template,
            "sandboxID": sandbox.id,
            "clientID": sandboxes.CLIENT_ID,
            "envdVersion": sandboxes.ENVD_VERSION,
            "alias": sandbox.template,
            "domain": None,
        }
        if sandbox.envd_token:
            out["envdAccessToken"] = sandbox.envd_token
        if sandbox.traffic_token:
            out["trafficAccessToken"] = sandbox.traffic_token
        return out

    # --- connect, resume, pause, kill ---

    async def connect_v1(self, exchange, team, body):
        if not body or "timeout" not in body:
            raise ApiError(400, "validation error: property \"timeout\" is missing")
        return await self.connect(exchange, team, body)

    async def connect_v2(self, exchange, team, body):
        return await self.connect(exchange, team, {"timeout": 300, **(body or {})})

    async def connect(self, exchange, team, body):
        seconds = max(0, self.seconds(body["timeout"]))
        sandbox = self.find(exchange, team)
        for _ in range(4):
            if sandbox.state == "killing":
                raise ApiError(409, "sandbox %s is being killed" % sandbox.id)
            if sandbox.state not in ("pausing", "resuming"):
                break
            await sandbox.settled.wait()
        if sandbox.state == "dead":
            raise self.missing(sandbox.id)
        status = 200
        if sandbox.state == "paused":
            await self.store.resume(sandbox, seconds, body.get("memory", True) is not False)
            status = 201
        elif sandbox.state == "running":
            self.extend(sandbox, seconds)
        else:
            raise ApiError(409, "sandbox %s is still transitioning" % sandbox.id)
        if self.store.settings["rotate_tokens"]:
            sandbox.generation += 1
            sandbox.make_tokens()
        return wire.answer(status, self.handle(sandbox))

    def extend(self, sandbox, seconds):
        now = sandboxes.time.time()
        if now + seconds > sandbox.end_at:
            sandbox.set_end(seconds)

    async def resume(self, exchange, team, body):
        seconds = max(0, self.seconds((body or {}).get("timeout", 15)))
        sandbox = self.find(exchange, team)
        if sandbox.state != "paused":
            raise ApiError(409, "sandbox %s is already running" % sandbox.id)
        await self.store.resume(sandbox, seconds)
        return wire.answer(201, self.handle(sandbox))

    async def pause(self, exchange, team, body):
        sandbox = self.find(exchange, team)
        memory = (body or {}).get("memory", True) is not False
        if sandbox.state == "pausing":
            await sandbox.settled.wait()
            if sandbox.state == "paused":
                return wire.answer(204)
        if sandbox.state != "running":
            raise ApiError(409, "Sandbox '%s' is not running (%s)" % (sandbox.id, sandbox.state))
        await self.store.pause(sandbox, memory)
        return wire.answer(204)

    async def kill(self, exchange, team, _body):
        await self.store.kill(self.find(exchange, team), "killed by the API")
        return wire.answer(204)

    # --- life time ---

    async def timeout(self, exchange, team, body):
        value = (body or {}).get("timeout")
        sandbox = self.find(exchange, team)
        seconds = max(0, self.seconds(value))
        refused = self.store.settings["refuse_ttl"]
        if refused is True or (isinstance(refused, list) and sandbox.id in refused):
            raise ApiError(400, "Timeout cannot be set")
        self.must_run(sandbox)
        now = sandboxes.time.time()
        last = sandbox.started_at + self.store.settings["max_ttl_s"]
        if now >= last:
            raise ApiError(400, "the sandbox has reached its maximum length")
        sandbox.set_end(min(seconds, last - now))
        return wire.answer(204)

    async def refreshes(self, exchange, team, body):
        sandbox = self.find(exchange, team)
        seconds = self.seconds((body or {}).get("duration", 15))
        self.must_run(sandbox)
        self.extend(sandbox, max(15, seconds))
        return wire.answer(204)

    def must_run(self, sandbox):
        if sandbox.state == "paused":
            raise self.missing(sandbox.id)
        if sandbox.state != "running":
            raise ApiError(409, "sandbox %s is in transition (%s)" % (sandbox.id, sandbox.state))

    # --- look ---

    async def get(self, exchange, team, _body):
        sandbox = self.find(exchange, team)
        out = self.listed(sandbox, "running" if sandbox.state in ("running", "resuming") else "paused")
        out.update({
            "allowInternetAccess": sandbox.internet,
            "network": sandbox.network,
            "lifecycle": {
                "autoResume": sandbox.auto_resume,
                "onTimeout": "pause" if sandbox.auto_pause else "kill",
            },
            "domain": None,
        })
        if sandbox.envd_token:
            out["envdAccessToken"] = sandbox.envd_token
        return wire.answer(200, out)

    def listed(self, sandbox, state):
        return {
            "templateID": sandbox.template,
            "alias": sandbox.template,
            "sandboxID": sandbox.id,
            "clientID": sandboxes.CLIENT_ID,
            "startedAt": rfc3339(sandbox.started_at),
            "endAt": rfc3339(sandbox.end_at),
            "cpuCount": 2,
            "memoryMB": 2048,
            "diskSizeMB": 10240,
            "state": state,
            "envdVersion": sandboxes.ENVD_VERSION,
            "metadata": sandbox.metadata,
        }

    def wanted_metadata(self, exchange):
        """One decode by the framework, one of the whole string, one of each part."""
        whole = unquote_plus(exchange.query.get("metadata", ""))
        wanted = {}
        for pair in whole.split("&") if whole else []:
            if pair.count("=") != 1:
                raise ApiError(400, "invalid metadata filter: %r" % pair)
            key, value = pair.split("=")
            wanted[unquote_plus(key)] = unquote_plus(value)
        return wanted

    async def list_v1(self, exchange, team, _body):
        wanted = self.wanted_metadata(exchange)
        found = [(s, state) for s, state in self.store.listed(team)
                 if state == "running" and self.store.matches(s, wanted)]
        return wire.answer(200, [self.listed(s, state) for s, state in found])

    async def list_v2(self, exchange, team, _body):
        query = exchange.query
        wanted = self.wanted_metadata(exchange)
        states = (query.get("state") or "running,paused").split(",")
        if any(state not in ("running", "paused") for state in states):
            raise ApiError(400, "validation error: parameter \"state\" in query has an error")
        order = query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise ApiError(400, "validation error: parameter \"order\" in query has an error")
        try:
            limit = int(query.get("limit", "100"))
        except ValueError:
            limit = 0
        if not 1 <= limit <= 100:
            raise ApiError(400, "validation error: parameter \"limit\" in query has an error")
        everything = [(s, state) for s, state in self.store.listed(team) if self.store.matches(s, wanted)]
        if query.get("template"):
            everything = [pair for pair in everything if pair[0].template == query["template"]]
        if query.get("startedAfter"):
            everything = [pair for pair in everything if rfc3339(pair[0].started_at) > query["startedAfter"]]
        running = sum(1 for _, state in everything if state == "running")
        found = [pair for pair in everything if pair[1] in states]
        found.sort(key=lambda pair: (rfc3339(pair[0].started_at), pair[0].id), reverse=order == "desc")
        if query.get("nextToken"):
            at = self.cursor(query["nextToken"], order)
            found = [pair for pair in found if self.beyond((rfc3339(pair[0].started_at), pair[0].id), at, order)]
        page, headers = found[:limit], {}
        if "running" in states:
            headers["X-Total-Running"] = str(running)
        if len(found) > limit:
            last = page[-1][0]
            token = "%s__%s%s" % (rfc3339(last.started_at), last.id, "__asc" if order == "asc" else "")
            headers["X-Next-Token"] = base64.urlsafe_b64encode(token.encode()).decode()
        return wire.answer(200, [self.listed(s, state) for s, state in page], headers)

    def cursor(self, token, order):
        try:
            parts = base64.urlsafe_b64decode(token.encode()).decode().split("__")
        except ValueError as error:
            raise ApiError(400, "Invalid next token") from error
        if len(parts) not in (2, 3) or (parts[2:] == ["asc"]) != (order == "asc"):
            raise ApiError(400, "Invalid next token")
        return parts[0], parts[1]

    def beyond(self, key, at, order):
        return key > at if order == "asc" else key < at

    async def network(self, exchange, team, body):
        sandbox = self.find(exchange, team)
        self.must_run(sandbox)
        kept = {k: v for k, v in sandbox.network.items() if k == "allowPublicTraffic"}
        sandbox.network = {**kept, **(body or {})}
        return wire.answer(204)

    async def metrics(self, exchange, team, _body):
        self.find(exchange, team)
        now = int(sandboxes.time.time())
        return wire.answer(200, [{
            "timestamp": rfc3339(now), "timestampUnix": now, "cpuCount": 2, "cpuUsedPct": 1.0, "memUsed": 100 << 20,
            "memTotal": 2048 << 20, "memCache": 0, "diskUsed": 1 << 30, "diskTotal": 10 << 30,
        }])
