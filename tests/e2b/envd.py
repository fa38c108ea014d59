"""envd of a sandbox (port 49983): /files in both encodings, and the filesystem and process services by Connect."""

import asyncio
import base64
import datetime
import gzip
import hashlib
import json
import mimetypes
import os
import re
import shutil
import signal
import stat
import struct
import time

import boxes
import processes
import wire

PIECE = 64 << 10
STATUS = {
    "canceled": 499, "invalid_argument": 400, "deadline_exceeded": 504, "not_found": 404, "already_exists": 409,
    "permission_denied": 403, "resource_exhausted": 429, "failed_precondition": 400, "aborted": 409,
    "unimplemented": 501, "internal": 500, "unknown": 500, "unavailable": 503, "unauthenticated": 401,
}
HOMES = {"user": "/home/user", "root": "/root"}
ORCHESTRATOR = {"/init", "/freeze", "/unfreeze", "/upgrade"}


class RpcError(Exception):
    def __init__(self, code, message):
        super().__init__(message)
        self.code, self.message = code, message

    def view(self):
        return {"code": self.code, "message": self.message}


def refuse(status, message):
    return wire.answer(status, {"code": status, "message": message})


def file_type(mode):
    if stat.S_ISREG(mode):
        return "FILE_TYPE_FILE"
    if stat.S_ISDIR(mode):
        return "FILE_TYPE_DIRECTORY"
    return None


class Envd:
    def __init__(self, sandbox):
        self.sandbox = sandbox
        self.processes = processes.Processes(sandbox)

    def route(self, exchange):
        path, method = exchange.path, exchange.method
        rest = {
            ("GET", "/health"): ("health", self.health),
            ("GET", "/metrics"): ("metrics", self.metrics),
            ("GET", "/envs"): ("envs", self.envs),
            ("GET", "/files"): ("files.read", self.read),
            ("POST", "/files"): ("files.write", self.write),
        }
        if (method, path) in rest:
            return rest[method, path]
        match = re.match(r"^/(filesystem\.Filesystem|process\.Process)/([A-Za-z]+)$", path)
        if match and method == "POST":
            short = "fs." if match.group(1).startswith("file") else "process."
            return short + match.group(2), self.rpc
        return None, None

    async def serve(self, exchange, handler):
        if exchange.path in ORCHESTRATOR:
            return wire.answer(404, {"message": "not found", "path": exchange.path, "code": 404})
        open_to_all = exchange.op in ("health", "files.read", "files.write")
        if not open_to_all and not self.has_token(exchange):
            await exchange.read()
            return refuse(401, "unauthorized access, please provide a valid access token or method signing if supported")
        if handler is None:
            return wire.text(404, "404 page not found\n")
        return await handler(exchange)

    def has_token(self, exchange):
        token = self.sandbox.envd_token
        return token is None or exchange.headers.get("X-Access-Token") == token

    async def health(self, _exchange):
        return wire.answer(204)

    async def metrics(self, _exchange):
        return wire.answer(200, {"ts": int(time.time()), "cpu_count": 2, "cpu_used_pct": 1.0, "mem_total": 2 << 30,
                                 "mem_used": 100 << 20, "disk_used": 1 << 30, "disk_total": 10 << 30})

    async def envs(self, _exchange):
        return wire.answer(200, self.sandbox.env)

    # --- paths and users ---

    def user(self, name):
        name = name or "user"
        if name not in HOMES:
            raise RpcError("unauthenticated", "invalid username: '%s'" % name)
        return name

    def absolute(self, path, user):
        home = HOMES[user]
        if path == "~" or path.startswith("~/"):
            path = home + path[1:]
        if not path.startswith("/"):
            path = home + "/" + path
        return os.path.normpath(re.sub(r"^/+", "/", path))

    def signed(self, exchange, operation):
        """True when the request carries the token, or a good signature for it."""
        if self.has_token(exchange):
            return True
        query = exchange.query
        signature, expires = query.get("signature"), query.get("signature_expiration")
        if not signature:
            return False
        text = "%s:%s:%s:%s" % (query.get("path", ""), operation, query.get("username", ""), self.sandbox.envd_token)
        if expires is not None:
            if not expires.isdigit() or int(expires) < time.time():
                return False
            text += ":" + expires
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
        return signature == "v1_" + digest

    # --- /files ---

    async def read(self, exchange):
        if not self.signed(exchange, "read"):
            return refuse(401, "missing or invalid signature or access token")
        try:
            path = self.absolute(exchange.query.get("path", ""), self.user(exchange.query.get("username")))
        except RpcError as error:
            return refuse(401, error.message)
        try:
            real = self.sandbox.get_box().host(path)[0]
            info = os.stat(real)
        except FileNotFoundError:
            return refuse(404, "path '%s' does not exist" % path)
        except (OSError, ValueError) as error:
            return refuse(500, "error checking if path exists '%s': %s" % (path, error))
        if stat.S_ISDIR(info.st_mode):
            return refuse(400, "path '%s' is a directory" % path)
        if not stat.S_ISREG(info.st_mode):
            await exchange.gone.wait()  # opening a pipe waits for its other end
            return refuse(500, "not a regular file")
        try:
            with open(real, "rb") as f:
                return await self.send_file(exchange, f, os.fstat(f.fileno()).st_size, path)
        except PermissionError as error:
            return refuse(500, "error opening file '%s': %s" % (path, error.strerror))

    async def send_file(self, exchange, file, size, path):
        kind = mimetypes.guess_type(path)[0] or "application/octet-stream"
        name = os.path.basename(path).replace("\\", "\\\\").replace('"', '\\"')
        headers = {"Vary": "Accept-Encoding", "Accept-Ranges": "bytes", "Content-Type": kind,
                   "Content-Disposition": 'inline; filename="%s"' % name.encode("ascii", "replace").decode()}
        status, first, length = 200, 0, size
        match = re.match(r"^bytes=(\d*)-(\d*)$", exchange.headers.get("Range", ""))
        if match and any(match.groups()):
            a, b = match.groups()
            first = int(a) if a else max(0, size - int(b))
            last = min(size - 1, int(b)) if a and b else size - 1
            if first >= size or last < first:
                return wire.answer(416, "invalid range", {"Content-Range": "bytes */%d" % size}, "text/plain")
            status, length = 206, last - first + 1
            headers["Content-Range"] = "bytes %d-%d/%d" % (first, last, size)
        elif "gzip" in exchange.headers.get("Accept-Encoding", "") and self.asks_gzip(exchange):
            headers["Content-Encoding"] = "gzip"
            return wire.answer(200, gzip.compress(file.read(), 1), headers, None)
        response = wire.web.StreamResponse(status=status, headers=headers)
        response.content_length = length
        await response.prepare(exchange.request)
        exchange.entry["status"] = status
        file.seek(first)
        while length > 0:
            data = file.read(min(PIECE, length))
            if not data:
                break
            length -= len(data)
            await response.write(data)
        await response.write_eof()
        return response

    def asks_gzip(self, exchange):
        """Most clients offer gzip by habit; only those that name it alone mean it for files."""
        return exchange.headers["Accept-Encoding"].strip() == "gzip"

    async def write(self, exchange):
        if not self.signed(exchange, "write"):
            await exchange.read()
            return refuse(401, "missing or invalid signature or access token")
        query = exchange.query
        try:
            user = self.user(query.get("username"))
        except RpcError as error:
            return refuse(401, error.message)
        metadata = {name[11:].lower(): value for name, value in exchange.headers.items()
                    if name.lower().startswith("x-metadata-")}
        kind = exchange.headers.get("Content-Type", "")
        written = []
        try:
            if kind.startswith("multipart/form-data"):
                async for part in await exchange.request.multipart():
                    if part.name != "file":
                        continue
                    path = query.get("path") or file_name(part)
                    if not path:
                        return refuse(400, "missing file name")
                    written.append(await self.store(exchange, path, user, part_chunks(exchange, part), metadata))
            elif kind.startswith("application/octet-stream"):
                if not query.get("path"):
                    return refuse(400, "path is required for application/octet-stream")
                written.append(await self.store(exchange, query["path"], user, exchange.chunks(), metadata))
            else:
                await exchange.read()
                return refuse(400, "unsupported content type: %s" % kind)
        except (IsADirectoryError, NotADirectoryError, FileExistsError, ValueError) as error:
            return refuse(400, "error opening file: %s" % error)
        except wire.web.HTTPException:
            raise
        except ConnectionError:
            raise
        except OSError as error:
            return refuse(507 if error.errno == 28 else 500, "error writing file: %s" % error.strerror)
        if not written:
            return refuse(400, "no files in the request")
        return wire.answer(200, json.dumps(written), None, "text/plain; charset=utf-8")

    async def store(self, exchange, path, user, chunks, metadata):
        path = self.absolute(path, user)
        real, inner = self.sandbox.get_box().host(path)
        if inner == "/usr" or inner.startswith("/usr/"):
            raise PermissionError(13, "Permission denied", path)
        if os.path.isdir(real):
            raise IsADirectoryError("path is a directory: %s" % path)
        os.makedirs(os.path.dirname(real), exist_ok=True)
        with open(real, "wb") as f:
            async for chunk in chunks:
                f.write(chunk)
        for key, value in metadata.items():
            try:
                os.setxattr(real, "user.e2b." + key, value.encode())
            except OSError:
                pass
        entry = {"path": path, "name": os.path.basename(path), "type": "file"}
        if metadata:
            entry["metadata"] = metadata
        return entry

    # --- Connect ---

    async def rpc(self, exchange):
        service, method = exchange.path.rpartition("/")[0][1:], exchange.path.rpartition("/")[2]
        streaming = exchange.headers.get("Content-Type", "").startswith("application/connect+json")
        handlers = STREAMS if streaming else UNARY
        handler = handlers.get((service.partition(".")[0], method))
        raw = await exchange.read()
        try:
            if handler is None:
                raise RpcError("unimplemented", "%s.%s is not implemented" % (service, method))
            if streaming:
                if len(raw) < 5 or len(raw) - 5 < struct.unpack(">I", raw[1:5])[0]:
                    raise RpcError("invalid_argument", "protocol error: incomplete envelope")
                raw = raw[5 : 5 + struct.unpack(">I", raw[1:5])[0]]
            message = json.loads(raw or b"{}")
            exchange.entry["body"] = message
            user = self.rpc_user(exchange)
        except (RpcError, ValueError) as error:
            error = error if isinstance(error, RpcError) else RpcError("invalid_argument", str(error))
            if streaming:
                response = await exchange.stream(content_type="application/connect+json")
                await response.write(envelope(2, {"error": error.view()}))
                await response.write_eof()
                return response
            return wire.answer(STATUS[error.code], error.view(), None, "application/json")
        if streaming:
            return await self.stream(exchange, handler, message, user)
        try:
            return wire.answer(200, await handler(self, message, user), None, "application/json")
        except RpcError as error:
            return wire.answer(STATUS[error.code], error.view(), None, "application/json")
        except OSError as error:
            error = RpcError("internal", "%s: %s" % (error.strerror, message.get("path")))
            return wire.answer(500, error.view(), None, "application/json")

    def rpc_user(self, exchange):
        header = exchange.headers.get("Authorization", "")
        if not header.startswith("Basic "):
            return "user"
        name = base64.b64decode(header[6:]).decode("utf-8", "replace").partition(":")[0]
        return self.user(name)

    async def stream(self, exchange, handler, message, user):
        response = await exchange.stream(content_type="application/connect+json")
        last = {}
        events = handler(self, exchange, message, user)
        interval = int(exchange.headers.get("Keepalive-Ping-Interval", "90") or 90)
        timeout = int(exchange.headers.get("Connect-Timeout-Ms", "0") or 0)
        deadline = time.monotonic() + timeout / 1000 if timeout else None
        try:
            while True:
                step = asyncio.ensure_future(events.__anext__())
                event = await self.next_event(exchange, response, step, interval, deadline)
                if event is None:
                    break
                await response.write(envelope(0, event))
        except RpcError as error:
            last = {"error": error.view()}
        except OSError as error:
            if isinstance(error, ConnectionError):
                return response
            last = {"error": RpcError("internal", str(error)).view()}
        finally:
            await events.aclose()
        if not exchange.gone.is_set():
            await response.write(envelope(2, last))
            await response.write_eof()
        return response

    async def next_event(self, exchange, response, step, interval, deadline):
        """The handler's next event, None at its end; keepalives meanwhile."""
        gone = asyncio.ensure_future(exchange.gone.wait())
        try:
            while True:
                wait = interval if deadline is None else min(interval, max(0, deadline - time.monotonic()))
                await asyncio.wait({step, gone}, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
                if step.done():
                    try:
                        return step.result()
                    except StopAsyncIteration:
                        return None
                if gone.done():
                    raise ConnectionResetError("the client is gone")
                if deadline is not None and time.monotonic() >= deadline:
                    exchange.timed_out = True
                    raise RpcError("deadline_exceeded", "context deadline exceeded")
                wrap = exchange.keepalive
                await response.write(envelope(0, wrap))
        finally:
            gone.cancel()
            if not step.done():
                step.cancel()
                await asyncio.wait({step})

    # --- filesystem ---

    def entry(self, path):
        box = self.sandbox.get_box()
        real, _ = box.host(path, follow=False)
        info = os.lstat(real)
        out = {"name": os.path.basename(path), "path": path}
        mode, kind = info.st_mode, None
        if stat.S_ISLNK(info.st_mode):
            # A link is shown with the type of what it leads to; a dangling one has none.
            out["symlinkTarget"] = path
            mode = 0
            try:
                target, inner = box.host(path)
                mode = os.stat(target).st_mode
                kind = file_type(mode)
                out["symlinkTarget"] = inner
            except OSError:
                pass
        else:
            kind = file_type(mode)
        if kind:
            out["type"] = kind
        if info.st_size:
            out["size"] = str(info.st_size)
        if stat.S_IMODE(mode):
            out["mode"] = stat.S_IMODE(mode)
        out["permissions"] = permissions(info.st_mode)
        out["owner"] = out["group"] = "user"
        when = datetime.datetime.utcfromtimestamp(info.st_mtime)
        out["modifiedTime"] = when.isoformat(timespec="microseconds") + "Z"
        metadata = read_metadata(real)
        if metadata:
            out["metadata"] = metadata
        return out

    async def fs_stat(self, message, user):
        path = self.absolute(message.get("path", ""), user)
        try:
            return {"entry": self.entry(path)}
        except (FileNotFoundError, NotADirectoryError) as error:
            raise RpcError("not_found", "file not found: stat %s: no such file or directory" % path) from error

    async def fs_make_dir(self, message, user):
        path = self.absolute(message.get("path", ""), user)
        real, _ = self.sandbox.get_box().host(path)
        if os.path.isdir(real):
            raise RpcError("already_exists", "directory already exists: %s" % path)
        if os.path.lexists(real):
            raise RpcError("invalid_argument", "path already exists but it is not a directory: %s" % path)
        os.makedirs(real)
        return {"entry": self.entry(path)}

    async def fs_move(self, message, user):
        source = self.absolute(message.get("source", ""), user)
        target = self.absolute(message.get("destination", ""), user)
        box = self.sandbox.get_box()
        there = box.host(target, follow=False)[0]
        os.makedirs(os.path.dirname(there), exist_ok=True)
        try:
            os.rename(box.host(source, follow=False)[0], there)
        except FileNotFoundError as error:
            raise RpcError("not_found", "source file not found: %s" % source) from error
        return {"entry": self.entry(target)}

    async def fs_list_dir(self, message, user):
        path = self.absolute(message.get("path", ""), user)
        depth = int(message.get("depth", 0)) or 1
        try:
            real = self.sandbox.get_box().host(path)[0]
            if not os.path.lexists(real):
                raise FileNotFoundError(path)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise RpcError("not_found", "path not found: lstat %s: no such file or directory" % path) from error
        except OSError as error:
            raise RpcError("failed_precondition", "cyclic symlink or chain >255 links at %s" % path) from error
        if not os.path.isdir(real):
            raise RpcError("invalid_argument", "path is not a directory: %s" % path)
        entries = []
        self.walk(real, path, depth, entries)
        return {"entries": entries} if entries else {}

    def walk(self, real, path, depth, entries):
        for name in sorted(os.listdir(os.fsencode(real))):
            name = name.decode("utf-8", "replace") if not is_utf8(name) else os.fsdecode(name)
            inner = path.rstrip("/") + "/" + name
            try:
                entries.append(self.entry(inner))
            except OSError:
                continue
            below = os.path.join(real, name)
            if depth > 1 and os.path.isdir(below) and not os.path.islink(below):
                self.walk(below, inner, depth - 1, entries)

    async def fs_remove(self, message, user):
        path = self.absolute(message.get("path", ""), user)
        try:
            real = self.sandbox.get_box().host(path, follow=False)[0]
        except OSError:
            return {}
        if os.path.isdir(real) and not os.path.islink(real):
            await asyncio.get_running_loop().run_in_executor(None, shutil.rmtree, real, True)
        elif os.path.lexists(real):
            os.unlink(real)
        return {}

    # --- processes ---

    async def process_start(self, exchange, message, user):
        exchange.keepalive = {"event": {"keepalive": {}}}
        if "pty" in message:
            raise RpcError("unimplemented", "the emulator has no terminals")
        cwd = message.get("process", {}).get("cwd")
        cwd = self.absolute(cwd, user) if cwd else HOMES[user]
        if not os.path.isdir(self.sandbox.get_box().host(cwd)[0]):
            raise RpcError("invalid_argument", "cwd '%s' does not exist" % cwd)
        process = await self.processes.start(message, cwd)
        queue = asyncio.Queue()
        process.subscribers.add(queue)
        try:
            yield {"event": {"start": {"pid": process.pid}}}
            async for event in self.follow(process, queue):
                yield event
        finally:
            process.subscribers.discard(queue)
            if exchange.timed_out and process.end is None:
                boxes.kill_child(process.child)

    async def process_connect(self, exchange, message, _user):
        exchange.keepalive = {"event": {"keepalive": {}}}
        process = self.selected(message)
        queue = asyncio.Queue()
        process.subscribers.add(queue)
        if process.end is not None:
            queue.put_nowait({"end": process.end})
        try:
            yield {"event": {"start": {"pid": process.pid}}}
            async for event in self.follow(process, queue):
                yield event
        finally:
            process.subscribers.discard(queue)

    async def follow(self, process, queue):
        while True:
            event = await queue.get()
            yield {"event": event}
            if "end" in event:
                return

    def selected(self, message):
        process = self.processes.find(message.get("process"))
        if process is None:
            raise RpcError("not_found", "process with %s not found" % json.dumps(message.get("process")))
        return process

    async def process_list(self, _message, _user):
        out = []
        for process in self.processes.living():
            entry = {"pid": process.pid, "config": process.spec}
            if process.tag:
                entry["tag"] = process.tag
            out.append(entry)
        return {"processes": out} if out else {}

    async def process_send_input(self, message, _user):
        process = self.selected(message)
        if process.child.stdin is None:
            raise RpcError("failed_precondition", "stdin of the process is not open")
        process.child.stdin.write(base64.b64decode(message.get("input", {}).get("stdin", "")))
        await process.child.stdin.drain()
        return {}

    async def process_close_stdin(self, message, _user):
        process = self.selected(message)
        if process.child.stdin is not None:
            process.child.stdin.close()
        return {}

    async def process_send_signal(self, message, _user):
        process = self.selected(message)
        if process.end is None:
            wanted = message.get("signal")
            if wanted in ("SIGNAL_SIGKILL", 9):
                boxes.kill_child(process.child)
            else:
                for pid in self.leaves(process.child.pid):
                    boxes.send_signal(pid, signal.SIGTERM)
        return {}

    def leaves(self, pid):
        """The processes in the box under bubblewrap's own two."""
        found = []
        try:
            with open("/proc/%d/task/%d/children" % (pid, pid), encoding="ascii") as f:
                for child in f.read().split():
                    with open("/proc/%s/task/%s/children" % (child, child), encoding="ascii") as g:
                        found += [int(leaf) for leaf in g.read().split()]
        except (OSError, ValueError):
            pass
        return found


UNARY = {
    ("filesystem", "Stat"): Envd.fs_stat,
    ("filesystem", "MakeDir"): Envd.fs_make_dir,
    ("filesystem", "Move"): Envd.fs_move,
    ("filesystem", "ListDir"): Envd.fs_list_dir,
    ("filesystem", "Remove"): Envd.fs_remove,
    ("process", "List"): Envd.process_list,
    ("process", "SendInput"): Envd.process_send_input,
    ("process", "SendSignal"): Envd.process_send_signal,
    ("process", "CloseStdin"): Envd.process_close_stdin,
}
STREAMS = {
    ("process", "Start"): Envd.process_start,
    ("process", "Connect"): Envd.process_connect,
}


def file_name(part):
    """With the folders: aiohttp's own attribute loses a leading slash."""
    match = re.search(r'filename="((?:[^"\\]|\\.)*)"', part.headers.get("Content-Disposition", ""))
    if not match:
        return part.filename
    name = match.group(1).replace('\\"', '"')
    return name.replace("%22", '"').replace("%0D", "\r").replace("%0A", "\n")


async def part_chunks(exchange, part):
    while True:
        data = await part.read_chunk(PIECE)
        if not data:
            return
        exchange.bytes_in += len(data)
        yield data


def envelope(flags, message):
    data = json.dumps(message).encode()
    return struct.pack(">BI", flags, len(data)) + data


def is_utf8(name):
    try:
        name.decode("utf-8")
        return True
    except UnicodeDecodeError:
        return False


def permissions(mode):
    """As Go prints a file mode."""
    kind = "d" if stat.S_ISDIR(mode) else "L" if stat.S_ISLNK(mode) else "p" if stat.S_ISFIFO(mode) else "-"
    return kind + "".join(c if mode & (1 << (8 - i)) else "-" for i, c in enumerate("rwxrwxrwx"))


def read_metadata(real):
    out = {}
    try:
        for name in os.listxattr(real, follow_symlinks=False):
            if name.startswith("user.e2b."):
                out[name[9:]] = os.getxattr(real, name, follow_symlinks=False).decode("utf-8", "replace")
    except OSError:
        pass
    return out
