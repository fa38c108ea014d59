"""The code-interpreter server of a sandbox (port 49999): /execute as NDJSON, contexts, one run at a time in each."""

import asyncio
import datetime
import json
import uuid

import boxes
import kernels
import scripts
import shells
import wire

FIELDS = {
    "text/plain": "text", "text/html": "html", "text/markdown": "markdown", "image/svg+xml": "svg",
    "image/png": "png", "image/jpeg": "jpeg", "application/pdf": "pdf", "text/latex": "latex",
    "application/json": "json", "application/javascript": "javascript", "e2b/data": "data", "e2b/chart": "chart",
}
LANGUAGES = {"js": "javascript", "ts": "typescript"}
END = {"type": "end_of_execution"}


def new_kernel(box, cwd="/home/user"):
    return kernels.Kernel(box, cwd)


def line(item):
    return json.dumps(item).encode() + b"\n"


def unquoted(value):
    """The server takes one pair of quotes off a text."""
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value


def result(data, main):
    item, extra = {"type": "result"}, {}
    for mime, value in data.items():
        field = FIELDS.get(mime)
        if field is None:
            extra[mime] = value
        elif value is not None:
            item[field] = unquoted(value) if field == "text" else value
    item["extra"] = extra
    item["is_main_result"] = main
    return item


def error(name, value, traceback=""):
    return {"type": "error", "name": name, "value": value, "traceback": traceback}


def assignment(name, value):
    """As the server writes it: nothing is escaped."""
    return "import os; os.environ['%s'] = '%s'" % (name, value)


def with_env(code, first, second):
    if not first and not second:
        return code
    indent = ""
    for text in code.split("\n"):
        if text.strip():
            indent = text[: len(text) - len(text.lstrip())]
            break
    groups = ["\n".join(indent + assignment(k, v) for k, v in group.items()) for group in (first, second)]
    return "\n".join([*groups, code])


class Context:
    def __init__(self, server, language="python", cwd="/home/user", context_id=None):
        self.server = server
        self.id = context_id or str(uuid.uuid4())
        self.language, self.cwd = language, cwd
        self.kernel_cwd = cwd
        self.lock = asyncio.Lock()
        self.kernel = None
        self.shell = None  # the process of another language
        self.env = None  # of the sandbox; read at the first run
        self.count = 0  # of scripted runs
        self.restarts = 0
        self.hang = False

    def view(self):
        return {"id": self.id, "language": self.language, "cwd": self.cwd}

    def get_kernel(self):
        if self.kernel is None or (self.kernel.dead.is_set() and not self.kernel.runs):
            if self.kernel is not None:
                self.kernel.close()
            self.kernel = new_kernel(self.server.sandbox.get_box(), self.kernel_cwd)
        return self.kernel

    async def stop(self):
        self.restarts += 1
        kernel, self.kernel = self.kernel, None
        shell, self.shell = self.shell, None
        self.env = None
        if shell is not None:
            shell.close()
        if kernel is not None:
            await kernel.kill()

    async def restart(self):
        await self.stop()
        self.kernel_cwd = "/"  # the Jupyter root, not the context's folder
        if self.language == "python" and not self.server.sandbox.scripted:
            await self.get_kernel().ready


class Interpreter:
    def __init__(self, sandbox):
        self.sandbox = sandbox
        self.settings = sandbox.store.settings
        self.contexts = {}
        self.defaults = {}
        for language in ("python", "javascript"):
            self.add_default(language)

    def add_default(self, language):
        context = Context(self, language)
        self.contexts[context.id] = self.defaults[language] = context
        return context

    def adopt(self, kernel):
        self.defaults["python"].kernel = kernel

    async def close(self):
        for context in self.contexts.values():
            await context.stop()

    async def forget(self):
        """The memory is lost: another server process, other contexts."""
        await self.close()
        self.__init__(self.sandbox)

    # --- routes ---

    def route(self, exchange):
        parts = [part for part in exchange.path.split("/") if part]
        key = (exchange.method, *parts[:1], len(parts))
        ops = {
            ("GET", "health", 1): ("health", self.health),
            ("POST", "execute", 1): ("execute", self.execute),
            ("GET", "contexts", 1): ("contexts.list", self.list),
            ("POST", "contexts", 1): ("contexts.create", self.create),
            ("DELETE", "contexts", 2): ("contexts.delete", self.delete),
        }
        if key == ("POST", "contexts", 3) and parts[2] == "restart":
            return "contexts.restart", self.restart
        return ops.get(key, (None, None))

    async def serve(self, exchange, handler):
        if handler is None:
            return wire.answer(404, {"detail": "Not Found"})
        return await handler(exchange)

    async def health(self, _exchange):
        return wire.answer(200, "\"OK\"")

    async def body(self, exchange, wanted):
        """The JSON body, or the answer 422."""
        try:
            body = await exchange.json()
        except ValueError as problem:
            return None, wire.answer(422, {"detail": [{"type": "json_invalid", "msg": str(problem)}]})
        if not isinstance(body, dict):
            return None, wire.answer(422, {"detail": [{"type": "missing", "loc": ["body"]}]})
        for name, (kind, required) in wanted.items():
            value = body.get(name)
            if (value is None and required) or (value is not None and not isinstance(value, kind)):
                return None, wire.answer(422, {"detail": [{"type": "type_error", "loc": ["body", name]}]})
        return body, None

    async def list(self, _exchange):
        return wire.answer(200, [context.view() for context in self.contexts.values()])

    async def create(self, exchange):
        body, problem = await self.body(exchange, {"language": (str, False), "cwd": (str, False)})
        if problem is not None:
            return problem
        language = (body.get("language") or "python").lower()
        context = Context(self, LANGUAGES.get(language, language), body.get("cwd") or "/home/user")
        if not self.sandbox.scripted:
            if context.language != "python" and context.language not in shells.PROGRAMS:
                return wire.text(500, "Failed to create context: no kernel named %r" % context.language)
            if context.language == "python":
                await context.get_kernel().ready
        self.contexts[context.id] = context
        return wire.answer(200, context.view())

    def named(self, exchange):
        return self.contexts.get(exchange.path.split("/")[2])

    async def delete(self, exchange):
        context = self.named(exchange)
        if context is None:
            return wire.text(404, "Context %s not found" % exchange.path.split("/")[2])
        del self.contexts[context.id]
        for language, default in list(self.defaults.items()):
            if default is context:
                del self.defaults[language]
        await context.stop()
        return wire.answer(200, "null")

    async def restart(self, exchange):
        context = self.named(exchange)
        if context is None:
            return wire.text(404, "Context %s not found" % exchange.path.split("/")[2])
        await context.restart()
        return wire.answer(200, "null")

    # --- execute ---

    async def execute(self, exchange):
        wanted = {"code": (str, True), "context_id": (str, False), "language": (str, False), "env_vars": (dict, False)}
        body, problem = await self.body(exchange, wanted)
        if problem is not None:
            return problem
        code = body["code"]
        exchange.entry["code"] = scripts.journal_view(code)
        exchange.entry["contextId"], exchange.entry["envVars"] = body.get("context_id"), body.get("env_vars")
        if body.get("context_id") and body.get("language"):
            return wire.text(400, "Only one of context_id or language can be provided")
        if body.get("context_id"):
            context = self.contexts.get(body["context_id"])
            if context is None:
                return wire.text(404, "Context %s not found" % body["context_id"])
        else:
            language = (body.get("language") or "python").lower()
            language = LANGUAGES.get(language, language)
            context = self.defaults.get(language)
            if context is None and not self.sandbox.scripted and language != "python" and language not in shells.PROGRAMS:
                return wire.text(500, "Failed to create context: no kernel named %r" % language)
            context = context or self.add_default(language)
        exchange.entry["contextId"] = context.id
        script = scripts.find(code)
        if script is not None and script.refusal():
            return await script.refuse(exchange)
        response = await exchange.stream()
        await self.in_turn(exchange, response, context, code, body.get("env_vars") or {}, script)
        return response

    async def in_turn(self, exchange, response, context, code, env_vars, script):
        """Waits silently for the context, then runs; a client that leaves meanwhile never runs."""
        turn = asyncio.ensure_future(context.lock.acquire())
        gone = asyncio.ensure_future(exchange.gone.wait())
        try:
            await asyncio.wait({turn, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not turn.done() or exchange.gone.is_set():
                return
            exchange.entry["begun"] = exchange.entry["t"] + exchange.elapsed()
            exchange.entry["ran"] = True
            self.sandbox.executions += 1
            work = self.run(exchange, response, context, code, env_vars, script)
            work = asyncio.ensure_future(work)
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                work.cancel()
                await asyncio.wait({work})
            if not work.cancelled() and work.exception() is not None:
                if not isinstance(work.exception(), ConnectionError):
                    raise work.exception()
        finally:
            gone.cancel()
            if turn.done() and not turn.cancelled():
                context.lock.release()
            else:
                turn.cancel()

    async def run(self, exchange, response, context, code, env_vars, script):
        if script is not None or self.sandbox.scripted:
            context.count += 1
            await scripts.play(self, exchange, response, context, code, script)
        elif context.language != "python":
            await self.run_shell(response, context, code, env_vars)
        else:
            await self.run_python(exchange, response, context, code, env_vars)

    def sandbox_env(self, exchange):
        """envd's /envs with the token of this request; without it the server takes the 401's body for the env."""
        if self.sandbox.envd_token and exchange.headers.get("X-Access-Token") != self.sandbox.envd_token:
            return {"code": "401", "message": "unauthorized access, please provide a valid access token"}
        return dict(self.sandbox.env)

    async def run_python(self, exchange, response, context, code, env_vars):
        first = context.env is None
        if first:
            context.env = self.sandbox_env(exchange)
        code = with_env(code, context.env if first else {}, env_vars)
        kernel = context.get_kernel()
        await self.with_keepalives(response, kernel.ready)
        # A kernel that unwinds from an error aborts what reaches it meanwhile, when it is told to stop on errors.
        run = kernel.send(code, stop_on_error=self.settings["after_interrupt"] != "works")
        finished = False
        try:
            finished = await self.pump(response, context, kernel, run)
        finally:
            kernel.forget(run)
            if not finished and not kernel.dead.is_set() and kernel.sockets:
                await asyncio.shield(self.interrupt(kernel))
        if env_vars and finished and not kernel.dead.is_set():
            undo = [assignment(k, context.env[k]) if k in context.env else "import os; os.environ.pop('%s', None)" % k
                    for k in env_vars]
            hidden = kernel.send("\n".join(undo), silent=True)
            while await hidden.messages.get() is not None:
                pass
            kernel.forget(hidden)
        if finished:
            await response.write(line(END))
            await response.write_eof()

    async def interrupt(self, kernel):
        if self.settings["lose_interrupts"] > 0:
            self.settings["lose_interrupts"] -= 1
        else:
            await kernel.interrupt()

    async def pump(self, response, context, kernel, run):
        restarts = context.restarts
        if context.hang and self.settings["hang_after_death"]:
            context.hang = False
            await self.with_keepalives(response, asyncio.Event().wait())
        while True:
            message = await self.with_keepalives(response, run.messages.get())
            if message is None:
                break
            if message[0] == "aborted" and self.settings["after_interrupt"] == "hangs":
                await self.with_keepalives(response, asyncio.Event().wait())
            item = self.item(*message)
            if item is not None:
                await response.write(line(item))
        if run.died:
            if context.restarts != restarts or self.sandbox.state != "running":
                await response.write(line(error("WebSocketError", "WebSocket connection was closed")))
                await response.write(line(error("UnexpectedEndOfExecution",
                                                "Connection to the execution was closed before the end")))
            else:
                await asyncio.sleep(self.settings["death_ms"] / 1000)
                context.hang = True
                context.env = None
                context.kernel_cwd = "/"
                kernel.forget(run)
                context.get_kernel()
                await response.write(line(error("ContextRestarting", "Context was restarted")))
        return True

    async def with_keepalives(self, response, awaitable):
        """What it gives; a keepalive line each 5 s until then."""
        task = asyncio.ensure_future(awaitable)
        try:
            while True:
                done, _ = await asyncio.wait({task}, timeout=self.settings["keepalive_s"])
                if done:
                    return task.result()
                await response.write(line({"type": "keepalive"}))
        finally:
            if not task.done() and not hasattr(awaitable, "add_done_callback"):
                task.cancel()

    def item(self, kind, content, date):
        if kind == "stream":
            return {"type": content["name"], "text": content["text"], "timestamp": stamp(date)}
        if kind == "execute_result":
            return result(content["data"], True)
        if kind == "display_data":
            return result(content["data"], False)
        if kind == "execute_input":
            return {"type": "number_of_executions", "execution_count": content["execution_count"]}
        if kind == "error":
            return error(content["ename"], content["evalue"], "".join(content["traceback"]))
        if kind == "aborted":
            return error("ExecutionAborted", "Execution was aborted")
        return None

    async def run_shell(self, response, context, code, env_vars):
        """Other languages: a process that keeps its state."""
        context.count += 1
        await response.write(line({"type": "number_of_executions", "execution_count": context.count}))
        if context.shell is None:
            context.shell = shells.Shell(self.sandbox.get_box(), context.language)

        async def say(name, text):
            await response.write(line({"type": name, "text": text, "timestamp": stamp(None)}))

        ended = False
        try:
            status = await self.with_keepalives(response, context.shell.run(code, {**self.sandbox.env, **env_vars}, say))
            ended = True
        finally:
            if not ended:  # interrupted: these processes do not survive it
                context.shell.close()
                context.shell = None
        if status:
            await response.write(line(error("ExitError", "exit status %d" % status)))
        await response.write(line(END))
        await response.write_eof()


def stamp(date):
    if isinstance(date, datetime.datetime):
        return date.isoformat()
    if isinstance(date, str):
        return date.replace("Z", "+00:00")
    return datetime.datetime.now(datetime.timezone.utc).isoformat()
