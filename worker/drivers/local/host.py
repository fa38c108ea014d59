"""The host of the LOCAL driver's kernels: one process a worker, NDJSON on stdin and stdout, Jupyter on ipc sockets.

It needs no file of the repository at run time (the worker passes this text), and of Python packages only
pyzmq; the kernels need ipykernel. It dies with the worker (end of stdin), and every kernel dies with it.

Worker -> host, one JSON object a line:
  {"op": "config", ...}                  first line; see Config
  {"op": "start", "k": id, "dir": d, "memory_mb", "max_processes", "file_mb"}
                                         a kernel in folder d (relative to the base): d/home is its home
  {"op": "run", "k": id, "code", "env": {}, "nonce"}
  {"op": "interrupt" | "kill", "k": id}
  {"op": "remove", "dir": d}             delete a folder
  {"op": "sweep", "dir": path}           delete the folder of a dead worker and what still runs from it
  {"op": "beat"}                         sign of life, each second
Host -> worker:
  {"ev": "hello"}, {"ev": "ready", "k"}
  {"ev": "out", "k", "s": 1 | 2, "t": text}, {"ev": "result", "k", "main": bool, "data": bundle}
  {"ev": "warn", "k", "t": text}
  {"ev": "end", "k", "status": "ok" | "error", "name", "value", "tb", "exit": n or absent}
  {"ev": "dead", "k", "code": exit status or 128+signal, "oom": bool, "why": text}
  {"ev": "removed", "dir"}
"""

import base64
import collections
import ctypes
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
import uuid

import zmq

FILES_MIME = "application/vnd.sandpiper.files+json"
OUT_PIECE = 128 << 10  # characters of one output line to the worker
OUT_QUEUE_MAX = 4 << 20  # bytes waiting for the worker; above it no kernel is read
OUT_RUN_MAX = 32 << 20  # characters of one stream of one run that are passed on; then only the tail is
TAIL_MAX = 64 << 10  # characters kept of what is beyond
LINE_MAX = 28 << 20  # bytes of one result
NAME_MAX, VALUE_MAX, TRACE_MAX = 256, 64 << 10, 128 << 10
START_SECONDS = 40
REPLY_GRACE = 0.5  # idle came but no reply: it could not be sent
PORTS = {"shell": 1, "iopub": 2, "stdin": 3, "control": 4, "hb": 5}

# Runs inside the sandbox before ipykernel. Publishing must wait for a slow reader, never drop.
LAUNCH = r"""
import os, sys, zmq
try:
    os.setpgid(0, 0)
except OSError:
    pass
if MAX_PROCESSES:
    import resource
    resource.setrlimit(resource.RLIMIT_NPROC, (MAX_PROCESSES, MAX_PROCESSES))
sys.argv[0] = "ipykernel"
from ipykernel.kernelapp import IPKernelApp

class App(IPKernelApp):
    def init_iopub(self, context):
        context.sockopts.update({zmq.XPUB_NODROP: 1, zmq.SNDHWM: 32})
        super().init_iopub(context)
        context.sockopts.clear()

if sys.path and sys.path[0] == "":
    del sys.path[0]
sys.path.insert(0, "")
App.launch_instance()
"""


def log(text):
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


libc = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


class Config:
    """What the worker said in its first line."""

    base = ""  # absolute; the host's working directory
    token = ""  # marks the processes of this worker's kernels
    python = "/usr/bin/python3"
    isolation = "bwrap"
    network = "none"
    silence_s = 12.0  # without a beat for so long, running code is killed
    prepare = ""


# --- processes --------------------------------------------------------------------------


def process_table():
    """pid -> parent pid, of every process we can see."""
    table = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open("/proc/%s/stat" % name, "rb") as f:
                fields = f.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if fields[0] != b"Z":
            table[int(name)] = int(fields[1])
    return table


def descendants(root, table):
    children = collections.defaultdict(list)
    for pid, parent in table.items():
        children[parent].append(pid)
    found, stack = set(), [root]
    while stack:
        for pid in children.get(stack.pop(), ()):
            if pid not in found:
                found.add(pid)
                stack.append(pid)
    return found


def marked(mark, table):
    """Processes that carry `mark` in their environment (not in bwrap, where /proc says it too)."""
    found = set()
    for pid in table:
        try:
            with open("/proc/%d/environ" % pid, "rb") as f:
                if mark in f.read():
                    found.add(pid)
        except OSError:
            pass
    found.discard(os.getpid())
    return found


def send_signal(pid, number):
    try:
        os.kill(pid, number)
    except OSError:
        pass


def alive(pid):
    try:
        os.waitpid(pid, os.WNOHANG)  # an orphan that came to us: reap it
    except OSError:
        pass
    try:
        with open("/proc/%d/stat" % pid, "rb") as f:
            return f.read().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


def oom_kills():
    """A count that grows when the system kills for lack of memory."""
    total = 0
    for path in ("/proc/vmstat", "/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        try:
            with open(path) as f:
                for line in f:
                    if line.startswith("oom_kill "):
                        total += int(line.split()[1])
        except (OSError, ValueError):
            pass
    return total


# --- a kernel's sandbox -----------------------------------------------------------------


def write_file(path, text):
    with open(path, "w") as f:
        f.write(text)


def sandbox_environment(kernel):
    """All that code sees of ours. Without isolation there is no /home/user: HOME, the working directory and
    OUTPUT_DIR name the session's folder instead, and code is never rewritten."""
    bwrap = Config.isolation == "bwrap"
    home = "/home/user" if bwrap else kernel.path("home")
    env = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": home,
        "USER": "user",
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "PYTHONUTF8": "1",
        "PYTHONUNBUFFERED": "1",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "IPYTHONDIR": kernel.inside + "/ipython",
        "OUTPUT_DIR": home + "/output",
        "SANDPIPER_KERNEL": kernel.mark,
    }
    if not bwrap:
        env["TMPDIR"] = kernel.path("tmp")
    return env


ETC = (
    "alternatives ca-certificates ca-certificates.conf fonts hosts ld.so.cache ld.so.conf ld.so.conf.d localtime"
    " magic matplotlibrc mime.types nsswitch.conf protocols resolv.conf services ssl timezone"
).split()


def bwrap_arguments(kernel):
    args = ["bwrap", "--unshare-all", "--unshare-user", "--uid", "1000", "--gid", "1000"]
    args += ["--share-net"] if Config.network == "host" else []
    args += ["--die-with-parent", "--new-session", "--cap-drop", "ALL", "--hostname", "sandpiper", "--clearenv"]
    for name, value in sandbox_environment(kernel).items():
        args += ["--setenv", name, value]
    args += ["--proc", "/proc", "--dev", "/dev", "--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = "/" + name
        if os.path.islink(path):
            args += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            args += ["--ro-bind", path, path]
    for name in ETC + [name for name in os.listdir("/etc") if name.startswith("python3")]:
        args += ["--ro-bind-try", "/etc/" + name, "/etc/" + name]
    for name in ("passwd", "group"):
        args += ["--ro-bind", os.path.join(Config.base, "etc", name), "/etc/" + name]
    prefix = os.path.realpath(Config.python)
    if not prefix.startswith(("/usr/", "/bin/")):
        top = os.path.dirname(os.path.dirname(os.path.abspath(Config.python)))
        args += ["--ro-bind", top, top]
    args += ["--bind", kernel.path("tmp"), "/tmp", "--bind", kernel.path("home"), "/home/user"]
    args += ["--bind", kernel.path(kernel.run_dir), kernel.inside, "--chdir", "/home/user", "--"]
    return args


def max_processes(wanted):
    """The limit set inside a sandbox, where (since Linux 5.14) it counts the sandbox's own. Outside, and
    before, it would count all processes of the user, other sessions' too: 0, none. Root is exempt from it."""
    release = os.uname().release.split(".")
    recent = tuple(int("".join(filter(str.isdigit, part[:3])) or 0) for part in release[:2]) >= (5, 14)
    return int(wanted.get("max_processes") or 0) if Config.isolation == "bwrap" and recent else 0


def limit_and_protect(wanted):
    """In the child, before exec."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    limits = [(resource.RLIMIT_CORE, 0), (resource.RLIMIT_NOFILE, 4096)]
    if wanted.get("memory_mb"):
        size = wanted["memory_mb"] << 20
        limits += [(resource.RLIMIT_DATA, size), (resource.RLIMIT_AS, 2 * size + (4 << 30))]
    if wanted.get("file_mb"):
        limits.append((resource.RLIMIT_FSIZE, wanted["file_mb"] << 20))
    for which, value in limits:
        try:
            hard = resource.getrlimit(which)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(which, (value, value))
        except (OSError, ValueError):
            pass
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(fd, b"700")
        os.close(fd)
    except OSError:
        pass
    os.umask(0o022)


class Run:
    """One execution in a kernel."""

    def __init__(self, msg_id, nonce):
        self.msg_id, self.nonce = msg_id, nonce
        self.idle = self.reply = None
        self.idle_at = 0.0
        self.error = None  # content of the error message
        self.listing = None  # what the prepared kernel's hook published
        self.sent = [0, 0, 0]  # characters passed on, by stream
        self.dropped = [0, 0, 0]
        self.tail = ["", "", ""]
        self.oom_before = oom_kills()


class Kernel:
    """States: starting -> ready <-> running; any of them -> dying -> gone."""

    def __init__(self, host, kid, folder, limits):
        self.host, self.id, self.folder, self.limits = host, kid, folder, limits
        self.state = "starting"
        self.mark = "%s-%d" % (Config.token, kid)
        self.run_dir = "run%d" % kid
        self.inside = "/run/sandpiper" if Config.isolation == "bwrap" else self.path(self.run_dir)
        self.session = uuid.uuid4().hex
        self.run = None
        self.pending = []  # [stream, [text], characters] not yet given to the worker
        self.pending_size = 0
        self.keepers = None  # processes that belong to the kernel itself
        self.doomed = set()
        self.deadline = time.monotonic() + START_SECONDS
        self.probe_at = 0.0
        self.prepare_id = None
        self.heard = False  # something came on iopub: it is subscribed
        self.exit_code = None
        self.oom = False
        self.why = ""
        self.sockets = {}
        self.child = None
        self.pidfd = self.stderr = -1
        self.complaint = b""

    def path(self, name):
        return os.path.join(Config.base, self.folder, name)

    # --- start ---

    def start(self):
        for name in ("home", "tmp", self.run_dir):
            os.makedirs(self.path(name), mode=0o700, exist_ok=True)
        connection = {"transport": "ipc", "ip": self.inside + "/s", "key": "", "signature_scheme": "hmac-sha256"}
        connection.update({name + "_port": port for name, port in PORTS.items()})
        write_file(self.path(self.run_dir + "/connection.json"), json.dumps(connection))
        launch = LAUNCH.replace("MAX_PROCESSES", str(max_processes(self.limits)))
        command = [Config.python, "-Xfrozen_modules=off", "-c", launch, "-f", self.inside + "/connection.json"]
        command += ["--HistoryManager.hist_file=:memory:"]
        bwrap = Config.isolation == "bwrap"
        self.stderr, write_end = os.pipe()
        os.set_blocking(self.stderr, False)
        try:
            self.child = subprocess.Popen(
                (bwrap_arguments(self) if bwrap else []) + command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=write_end,
                cwd=self.path("home"),
                env={"PATH": "/usr/local/bin:/usr/bin:/bin"} if bwrap else sandbox_environment(self),
                start_new_session=True,
                close_fds=True,
                preexec_fn=lambda: limit_and_protect(self.limits),
            )
        finally:
            os.close(write_end)
        self.watch(self.stderr)
        self.pidfd = os.pidfd_open(self.child.pid)
        self.watch(self.pidfd)
        self.connect()

    def watch(self, fd):
        self.host.poller.register(fd, zmq.POLLIN)
        self.host.by_fd[fd] = self

    def unwatch(self, fd):
        if fd in self.host.by_fd:
            self.host.poller.unregister(fd)
            del self.host.by_fd[fd]
            os.close(fd)

    def connect(self):
        kinds = {"shell": zmq.DEALER, "control": zmq.DEALER, "iopub": zmq.SUB}
        for name, kind in kinds.items():
            sock = self.host.context.socket(kind)
            sock.setsockopt(zmq.LINGER, 0)
            sock.setsockopt(zmq.RECONNECT_IVL, 10)
            sock.setsockopt(zmq.RECONNECT_IVL_MAX, 50)
            sock.setsockopt(zmq.MAXMSGSIZE, 128 << 20)
            if kind == zmq.SUB:
                sock.setsockopt(zmq.RCVHWM, 8)
                sock.setsockopt(zmq.SUBSCRIBE, b"")
            # Relative to the base, our working directory: a socket's path may have 107 bytes.
            sock.connect("ipc://%s/%s/s-%d" % (self.folder, self.run_dir, PORTS[name]))
            self.sockets[name] = sock
            self.host.poller.register(sock, zmq.POLLIN)
            self.host.by_socket[sock] = (self, name)

    def send(self, channel, msg_type, content):
        msg_id = uuid.uuid4().hex
        header = {
            "msg_id": msg_id,
            "session": self.session,
            "username": "user",
            "date": time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime()),
            "msg_type": msg_type,
            "version": "5.3",
        }
        frames = [b"<IDS|MSG>", b""]
        frames += [json.dumps(part).encode() for part in (header, {}, {}, content)]
        self.sockets[channel].send_multipart(frames, zmq.NOBLOCK)
        return msg_id

    def execute(self, code, silent):
        content = {
            "code": code,
            "silent": silent,
            "store_history": not silent,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": False,
        }
        return self.send("shell", "execute_request", content)

    def tick(self, now):
        if self.state == "starting":
            if now > self.deadline:
                self.kill("the kernel was not ready in %d s" % START_SECONDS)
            elif not self.heard and now > self.probe_at:
                # A subscription has no answer: ask until something comes back on iopub.
                self.probe_at = now + 0.05
                try:
                    self.send("shell", "kernel_info_request", {})
                except zmq.Again:
                    pass
        elif self.state == "running" and self.run.idle and not self.run.reply:
            if now > self.run.idle_at + REPLY_GRACE:
                self.finish()
        elif self.state == "dying":
            self.bury()

    # --- messages ---

    def receive(self, name):
        sock = self.sockets.get(name)
        for _ in range(64):
            if sock is None or sock.closed or (name == "iopub" and self.host.full()):
                break
            try:
                frames = sock.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            try:
                self.handle(name, frames)
            except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
                # The peer is user code: whatever it sends must not hurt the host.
                log("kernel %d: odd message on %s: %r" % (self.id, name, error))
        self.flush()

    def handle(self, name, frames):
        at = frames.index(b"<IDS|MSG>")
        header = json.loads(frames[at + 2])
        parent = json.loads(frames[at + 3]).get("msg_id")
        msg_type = header["msg_type"]
        if name == "iopub":
            if self.state == "starting":
                self.on_start_iopub()
            elif self.run is not None and parent == self.run.msg_id:
                self.on_iopub(msg_type, frames[at + 5])
        elif name == "shell" and msg_type == "execute_reply":
            content = json.loads(frames[at + 5].decode("utf-8", "replace"))
            if self.state == "starting" and parent == self.prepare_id:
                self.on_prepared(content)
            elif self.run is not None and parent == self.run.msg_id:
                self.run.reply = content
                if self.run.idle:
                    self.finish()

    def on_start_iopub(self):
        if not self.heard:
            self.heard = True
            self.prepare_id = self.execute(Config.prepare, True)

    def on_prepared(self, content):
        if content.get("status") != "ok":
            self.kill("the kernel could not be prepared: %s: %s" % (content.get("ename"), content.get("evalue")))
            return
        table = process_table()
        self.keepers = descendants(self.child.pid, table) | {self.child.pid}
        self.state = "ready"
        self.host.tell({"ev": "ready", "k": self.id})

    def on_iopub(self, msg_type, raw):
        content = json.loads(raw.decode("utf-8", "replace"))
        run = self.run
        if msg_type == "stream":
            self.on_text(2 if content["name"] == "stderr" else 1, str(content["text"]))
        elif msg_type in ("display_data", "execute_result"):
            data = content["data"]
            if FILES_MIME in data:
                if data[FILES_MIME].get("nonce") == run.nonce:
                    run.listing = data[FILES_MIME]
            elif data:
                self.on_result(data, msg_type == "execute_result")
        elif msg_type == "error":
            run.error = content
        elif msg_type == "status" and content["execution_state"] == "idle":
            run.idle = True
            run.idle_at = time.monotonic()
            if run.reply:
                self.finish()

    def on_text(self, stream, text):
        run = self.run
        room = OUT_RUN_MAX - run.sent[stream]
        if room < len(text):
            rest = text[max(room, 0):]
            text = text[:max(room, 0)]
            run.dropped[stream] += len(rest)
            run.tail[stream] = (run.tail[stream] + rest[-TAIL_MAX:])[-TAIL_MAX:]
        if not text:
            return
        run.sent[stream] += len(text)
        self.pending_size += len(text)
        last = self.pending[-1] if self.pending else None
        if last is not None and last[0] == stream and last[2] < OUT_PIECE:
            last[1].append(text)
            last[2] += len(text)
        else:
            self.pending.append([stream, [text], len(text)])
        if self.pending_size > 2 * OUT_PIECE:
            self.flush()

    def flush(self):
        """What has been gathered goes to the worker, streams in the order in which they came."""
        pending, self.pending, self.pending_size = self.pending, [], 0
        for stream, parts, _ in pending:
            text = "".join(parts)
            for start in range(0, len(text), OUT_PIECE):
                self.host.tell({"ev": "out", "k": self.id, "s": stream, "t": text[start:start + OUT_PIECE]})

    def on_result(self, data, main):
        self.flush()
        line = self.host.encode({"ev": "result", "k": self.id, "main": main, "data": data})
        if len(line) > LINE_MAX:
            self.warn("a result of %d bytes (%s) was dropped: too large" % (len(line), ", ".join(data)[:200]))
        else:
            self.host.tell_line(line)

    def warn(self, text):
        self.host.tell({"ev": "warn", "k": self.id, "t": text})

    # --- the end of a run ---

    def start_run(self, message):
        settings = {"env": message["env"], "output": "/home/user/output"}
        if Config.isolation != "bwrap":
            settings["output"] = self.path("home/output")
        text = base64.b64encode(json.dumps(settings).encode()).decode()
        code = "#sandpiper:%s:%s\n%s" % (message["nonce"], text, message["code"])
        self.run = Run(None, message["nonce"])
        self.run.msg_id = self.execute(code, False)
        self.state = "running"

    def end_output(self):
        run = self.run
        for stream, name in ((1, "stdout"), (2, "stderr")):
            lost = run.dropped[stream] - len(run.tail[stream])
            if lost > 0:
                self.warn("%s: %d characters in the middle were not kept" % (name, lost))
            if run.tail[stream]:
                self.pending.append([stream, [run.tail[stream]], len(run.tail[stream])])
        self.flush()

    def finish(self):
        self.end_output()
        self.kill_leftovers()
        run, self.run = self.run, None
        self.state = "ready"
        if run.listing is None:
            log("kernel %d: a run without its hooks; preparing it again" % self.id)
            self.execute(Config.prepare, True)
        event = {"ev": "end", "k": self.id, "status": "ok"}
        self.describe_error(run, event)
        self.host.tell(event)

    def describe_error(self, run, event):
        listing = run.listing or {}
        reply = run.reply or {}
        error = run.error or (reply if reply.get("status") == "error" else None) or {}
        fallback = listing.get("error") or {}
        code = listing.get("exit")
        if isinstance(code, list) and isinstance(code[0], int):
            event["exit"] = code[0]
            if code[0] == 0:
                return
        elif reply.get("status") == "ok" and not run.error and not fallback:
            return
        event["status"] = "error"
        event["name"] = str(error.get("ename") or fallback.get("name") or "Error")[:NAME_MAX]
        value = error.get("evalue")
        event["value"] = shorten(str(fallback.get("value", "") if value is None else value), VALUE_MAX)
        trace = error.get("traceback")
        event["tb"] = shorten("\n".join(map(str, trace)) if isinstance(trace, list) else "", TRACE_MAX)

    def kill_leftovers(self):
        """No process outlives the run that started it: only the interpreter is a session's state."""
        for _ in range(20):
            left = self.mine() - self.keepers
            if not left:
                return
            for pid in left:
                send_signal(pid, signal.SIGKILL)
            for _ in range(50):
                if not any([alive(pid) for pid in left]):
                    break
                time.sleep(0.002)

    def mine(self):
        table = process_table()
        found = descendants(self.child.pid, table)
        if Config.isolation != "bwrap":
            found |= marked(self.mark.encode(), {pid: 0 for pid in table if pid not in found})
        found.discard(self.child.pid)
        return found

    # --- death ---

    def kill(self, why):
        if self.state == "gone":
            return
        self.why = self.why or why
        self.doomed |= self.mine()
        for pid in self.doomed | {self.child.pid}:
            send_signal(pid, signal.SIGKILL)

    def on_exit(self):
        """The child has ended, by itself or by our hand."""
        status = self.child.wait()
        self.exit_code = 128 - status if status < 0 else status
        self.unwatch(self.pidfd)
        self.read_stderr()
        self.unwatch(self.stderr)
        if self.state == "running":
            self.read_rest()
            self.end_output()
            self.oom = not self.why and self.exit_code == 137 and oom_kills() > self.run.oom_before
        elif self.state == "starting":
            self.why = self.why or "the kernel did not start: " + self.last_words()
        for sock in self.sockets.values():
            self.host.poller.unregister(sock)
            del self.host.by_socket[sock]
            sock.close()
        self.sockets = {}
        self.doomed |= self.mine()
        self.state = "dying"
        self.bury()

    def read_rest(self):
        """What it published before it died."""
        deadline = time.monotonic() + 0.2
        quiet = 0
        while quiet < 3 and time.monotonic() < deadline and self.run is not None:
            if self.sockets["iopub"].poll(10):
                quiet = 0
                self.receive("iopub")
            else:
                quiet += 1

    def read_stderr(self):
        """What the kernel itself complains of; kept a little for when it does not start."""
        for _ in range(16):
            try:
                data = os.read(self.stderr, 65536)
            except OSError:
                return
            if not data:
                self.unwatch(self.stderr)
                self.stderr = -1  # its number may be another kernel's soon
                return
            self.complaint = (self.complaint + data)[-4096:]

    def last_words(self):
        lines = self.complaint.decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:300] if lines else "exit status %s" % self.exit_code

    def bury(self):
        if Config.isolation != "bwrap":
            self.doomed |= self.mine()
        for pid in self.doomed:
            send_signal(pid, signal.SIGKILL)
        self.doomed = {pid for pid in self.doomed if alive(pid)}
        if self.doomed:
            return
        self.state = "gone"
        shutil.rmtree(self.path(self.run_dir), ignore_errors=True)
        del self.host.kernels[self.id]
        event = {"ev": "dead", "k": self.id, "code": self.exit_code, "oom": self.oom, "why": self.why}
        self.host.tell(event)


def shorten(text, limit):
    if len(text) <= limit:
        return text
    half = limit // 2
    return "%s\n... %d characters left out ...\n%s" % (text[:half], len(text) - 2 * half, text[-half:])


# --- the host ---------------------------------------------------------------------------


class Host:
    def __init__(self):
        self.context = zmq.Context()
        self.poller = zmq.Poller()
        self.kernels = {}
        self.by_socket, self.by_fd = {}, {}
        self.removing = {}  # child -> folder
        self.queue = collections.deque()  # lines for the worker
        self.queued = 0
        self.partial = []  # pieces of a line that has no end yet
        self.last_beat = self.last_turn = time.monotonic()
        self.reading = True  # iopub sockets are polled
        self.ended = False
        os.set_blocking(0, False)
        os.set_blocking(1, False)
        self.poller.register(0, zmq.POLLIN)

    # --- to the worker ---

    def encode(self, event):
        text = json.dumps(event, ensure_ascii=False)
        try:
            return text.encode() + b"\n"
        except UnicodeEncodeError:  # lone surrogates
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
            return text.encode() + b"\n"

    def tell(self, event):
        self.tell_line(self.encode(event))

    def tell_line(self, line):
        if not self.queue:
            self.poller.register(1, zmq.POLLOUT)
        self.queue.append(line)
        self.queued += len(line)

    def full(self):
        return self.queued > OUT_QUEUE_MAX

    def write(self):
        while self.queue:
            line = self.queue[0]
            try:
                count = os.write(1, line[:1 << 20])
            except BlockingIOError:
                break
            except OSError:
                self.ended = True
                return
            self.queued -= count
            if count == len(line):
                self.queue.popleft()
            else:
                self.queue[0] = memoryview(line)[count:]
        if not self.queue:
            self.poller.unregister(1)

    # --- from the worker ---

    def read(self):
        chunks = []
        for _ in range(64):
            try:
                data = os.read(0, 1 << 16)
            except BlockingIOError:
                break
            if not data:
                self.ended = True
                break
            chunks.append(data)
        if not chunks:
            return
        self.last_beat = time.monotonic()
        if not any(b"\n" in chunk for chunk in chunks):
            self.partial = self.partial + chunks
            return
        data = b"".join(self.partial + chunks)
        *lines, rest = data.split(b"\n")
        self.partial = [rest]
        for line in lines:
            if line:
                message = json.loads(line)
                try:
                    self.obey(message)
                except (OSError, zmq.ZMQError, subprocess.SubprocessError) as error:
                    log("%s: %r" % (message["op"], error))
                    if message.get("k") in self.kernels:
                        self.kernels[message["k"]].kill("the kernel host could not serve it: %s" % error)

    def obey(self, message):
        op = message["op"]
        if op == "config":
            self.configure(message)
        elif op == "start":
            self.start(message["k"], message["dir"], message)
        elif op == "remove":
            self.remove(os.path.join(Config.base, message["dir"]), message["dir"])
        elif op == "sweep":
            self.sweep(message["dir"])
        elif op != "beat":
            self.command(op, message)

    def command(self, op, message):
        kernel = self.kernels.get(message["k"])
        if kernel is None or kernel.state == "dying":
            return  # its "dead" is on the way
        if op == "kill":
            kernel.kill("killed")
        elif op == "run" and kernel.state == "ready":
            kernel.start_run(message)
        elif op == "interrupt" and kernel.state == "running":
            kernel.send("control", "interrupt_request", {})

    def configure(self, message):
        for name in [name for name in vars(Config) if not name.startswith("_")]:
            if name in message:
                setattr(Config, name, message[name])
        os.chdir(Config.base)
        os.makedirs("etc", exist_ok=True)
        write_file("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/bash\n")
        write_file("etc/group", "root:x:0:\nuser:x:1000:\n")
        if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            log("no child subreaper: processes that user code leaves behind may escape")
        for pid in marked(Config.token.encode(), process_table()):
            send_signal(pid, signal.SIGKILL)  # of a host that was killed
        self.tell({"ev": "hello"})

    def start(self, kid, folder, limits):
        kernel = self.kernels[kid] = Kernel(self, kid, folder, limits)
        try:
            kernel.start()
        except (OSError, subprocess.SubprocessError) as error:
            if kernel.child is not None:
                kernel.kill("the kernel did not start: %s" % error)
                return
            del self.kernels[kid]
            event = {"ev": "dead", "k": kid, "code": 1, "oom": False, "why": "the kernel did not start: %s" % error}
            self.tell(event)

    def remove(self, path, folder):
        script = 'rm -rf -- "$1" 2>/dev/null || { chmod -R u+rwX -- "$1"; rm -rf -- "$1"; }'
        command = ["/bin/sh", "-c", script, "sh", path]
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.removing[child] = folder

    def sweep(self, path):
        for pid in marked(os.path.basename(path).encode(), process_table()):
            send_signal(pid, signal.SIGKILL)
        self.remove(path, None)

    def reap(self):
        for child, folder in list(self.removing.items()):
            if child.poll() is not None:
                del self.removing[child]
                if folder is not None:
                    self.tell({"ev": "removed", "dir": folder})

    def reap_orphans(self):
        """User processes whose parents died come to us when there is no PID namespace."""
        known = {kernel.child.pid for kernel in self.kernels.values() if kernel.child}
        known |= {child.pid for child in self.removing}
        try:
            # WNOWAIT: look first, a known child's status belongs to its own wait.
            info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            while info is not None and info.si_pid not in known:
                os.waitpid(info.si_pid, os.WNOHANG)
                info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except OSError:
            pass

    # --- the loop ---

    def watch_worker(self, now):
        """A worker that is stopped or cut off may have lost its locks: its code must not go on."""
        if now - self.last_turn > 2:  # it is we who slept
            self.last_beat += now - self.last_turn
        self.last_turn = now
        if now - self.last_beat > Config.silence_s:
            for kernel in list(self.kernels.values()):
                if kernel.state == "running":
                    kernel.kill("the worker gave no sign of life")

    def timeout(self):
        busy = any(kernel.state in ("starting", "dying") or (kernel.run and kernel.run.idle)
                   for kernel in self.kernels.values())
        return 10 if busy or self.removing else 500

    def poll_iopub(self):
        """While the worker does not take what there is, kernels are not read and wait."""
        reading = not self.full()
        if reading == self.reading:
            return
        self.reading = reading
        for sock, (_, name) in self.by_socket.items():
            if name == "iopub":
                self.poller.modify(sock, zmq.POLLIN if reading else 0)

    def dispatch(self, source):
        if source == 0:
            self.read()
        elif source == 1:
            self.write()
        elif source in self.by_socket:
            kernel, name = self.by_socket[source]
            kernel.receive(name)
        elif source in self.by_fd:
            kernel = self.by_fd[source]
            if source == kernel.pidfd:
                kernel.on_exit()
            else:
                kernel.read_stderr()

    def turn(self):
        # Output first, then deaths: a dead kernel's last words are still heard.
        events = sorted(self.poller.poll(self.timeout()), key=lambda event: event[0] in self.by_fd)
        for source, _ in events:
            self.dispatch(source)
        now = time.monotonic()
        for kernel in list(self.kernels.values()):
            kernel.tick(now)
        self.watch_worker(now)
        self.reap()
        self.reap_orphans()
        if self.queue:
            self.write()
        self.poll_iopub()

    def close(self):
        """The worker is gone: nothing of its sessions is of use to anyone."""
        for kernel in list(self.kernels.values()):
            kernel.kill("the worker is gone")
        deadline = time.monotonic() + 5
        while self.kernels and time.monotonic() < deadline:
            for kernel in list(self.kernels.values()):
                if kernel.state == "dying":
                    kernel.bury()
                elif kernel.child is None or kernel.child.poll() is not None:
                    kernel.on_exit()
            time.sleep(0.01)
        if self.ended and Config.base:  # after a fault of ours the worker's sessions go on without us
            os.chdir("/")
            shutil.rmtree(Config.base, ignore_errors=True)


def main():
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the worker's business
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    host = Host()
    try:
        while not host.ended:
            host.turn()
    finally:
        host.close()
    os._exit(0)


main()
