"""One kernel: its start, its runs, its death."""

import base64
import json
import os
import pkgutil
import shutil
import signal
import time

import zmq

from host import box, network
from host.cgroup import Group
from host.config import PORTS, REPLY_GRACE, START_SECONDS, Config
from host.patrol import Patrol
from host.processes import alive, descendants, log, marked, oom_kills, process_table, send_signal, write_file
from host.run import Run

LAUNCH = pkgutil.get_data(__package__, "launch.py")


class Kernel:
    """States: starting -> ready <-> running; any of them -> dying -> gone."""

    def __init__(self, host, kid, folder, limits):
        self.host, self.id, self.folder, self.limits = host, kid, folder, limits
        self.state = "starting"
        self.mark = "%s-%d" % (Config.token, kid)
        self.run_dir = "run%d" % kid
        self.inside = "/run/sandpiper" if box.isolated() else self.path(self.run_dir)
        self.key = os.urandom(32).hex()  # signs its messages
        self.run = None
        self.keepers = None  # processes that belong to the kernel itself
        self.doomed = set()
        self.deadline = time.monotonic() + START_SECONDS
        self.probe_at = 0.0
        self.prepare_id = None
        self.heard = False  # something came on iopub: it is subscribed
        self.exit_code = None
        self.oom = False
        self.disk_full = False
        self.why = ""
        self.uid = limits.get("uid") or 0 if box.isolated() else 0
        self.group = Group(host.groups, "k%d" % kid, limits)
        self.network = network.Network(self.uid) if network.wanted() else None
        self.patrol = Patrol(self.path(""), limits)
        self.channels = None
        self.child = None
        self.pidfd = self.stderr = -1
        self.complaint = b""

    def path(self, name):
        return os.path.join(Config.base, self.folder, name)

    # --- start ---

    def start(self):
        box.make_folders(self)
        run = self.path(self.run_dir)
        for name, data, mode in (("launch.py", LAUNCH, 0o644), ("connection.json", self.connection(), 0o600)):
            write_file(os.path.join(run, name), data, mode)
            if self.uid:
                os.chown(os.path.join(run, name), self.uid, self.uid)
        command = [Config.python, "-Xfrozen_modules=off", self.inside + "/launch.py"]
        command += [str(box.max_processes(self.limits)), "-f", self.inside + "/connection.json"]
        command += ["--HistoryManager.hist_file=:memory:"]
        self.stderr, write_end = os.pipe()
        os.set_blocking(self.stderr, False)
        try:
            self.child = box.spawn(self, command, write_end)
        finally:
            os.close(write_end)
        self.host.watch(self.stderr, self)
        self.pidfd = os.pidfd_open(self.child.pid)
        self.host.watch(self.pidfd, self)

    def connection(self):
        """The connection file. Not jupyter_client's function: that one looks for free TCP ports, and importing it
        first would hold up the start."""
        what = {"transport": "ipc", "ip": self.inside + "/s", "key": self.key, "signature_scheme": "hmac-sha256"}
        what.update({name + "_port": port for name, port in PORTS.items()})
        return json.dumps(what).encode()

    def connect(self):
        # jupyter_client takes 0.1 s to import: the first kernel is under way meanwhile.
        from host.channels import Channels

        self.channels = Channels(self.host.context, "%s/%s/s" % (self.folder, self.run_dir), self.key)
        for name, sock in self.channels.sockets.items():
            self.host.watch_socket(sock, self, name)

    def execute(self, code, silent):
        content = {
            "code": code,
            "silent": silent,
            "store_history": not silent,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": False,
        }
        return self.channels.send("shell", "execute_request", content)

    def tick(self, now):
        if self.state == "starting":
            self.go_on_starting(now)
        elif self.state == "dying":
            self.bury()
        else:
            if self.state == "running" and self.run.idle and not self.run.reply:
                if now > self.run.idle_at + REPLY_GRACE:
                    self.finish()
            self.watch_limits()

    def watch_limits(self):
        found = self.patrol.look(self.child.pid, self.state == "running") if not self.why else None
        if found is not None:
            kind, reason = found
            self.oom, self.disk_full = kind == "memory", kind == "disk"
            self.kill(reason)

    def go_on_starting(self, now):
        if self.why:
            return  # killed; its end comes
        try:
            if self.network is not None:
                self.network.step()
            if self.channels is None:
                self.connect()
            if now > self.deadline:
                self.kill("the kernel was not ready in %d s" % START_SECONDS)
            elif not self.heard and now > self.probe_at:
                # A subscription has no answer: ask until something comes back on iopub.
                self.probe_at = now + 0.05
                self.channels.send("shell", "kernel_info_request", {})
        except zmq.Again:
            pass
        except (ImportError, OSError, zmq.ZMQError) as error:
            self.kill("the kernel host could not reach it: %s" % error)

    # --- messages ---

    def receive(self, name):
        for _ in range(64):
            if self.channels is None or (name == "iopub" and self.host.wire.full()):
                break
            try:
                msg_type, parent, content = self.channels.receive(name)
                self.handle(name, msg_type, parent, content)
            except zmq.Again:
                break
            except Exception as error:
                # The peer is user code: whatever it sends must not hurt the host.
                log("kernel %d: odd message on %s: %r" % (self.id, name, error))
        if self.run is not None:
            self.run.flush()

    def handle(self, name, msg_type, parent, packed):
        """Content is unpacked only where it is of use."""
        ours = self.run is not None and parent == self.run.msg_id
        if name == "iopub":
            if self.state == "starting":
                self.on_start_iopub()
            elif ours:
                self.on_iopub(msg_type, self.channels.unpack(packed))
        elif name == "shell" and msg_type == "execute_reply":
            content = self.channels.unpack(packed)
            if self.state == "starting" and parent == self.prepare_id:
                self.on_prepared(content)
            elif ours:
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
        self.host.wire.tell({"ev": "ready", "k": self.id})

    def on_iopub(self, msg_type, content):
        run = self.run
        if msg_type == "stream":
            run.on_text(2 if content["name"] == "stderr" else 1, str(content["text"]))
        elif msg_type in ("display_data", "execute_result"):
            run.on_data(content["data"], msg_type == "execute_result")
        elif msg_type == "error":
            run.error = content
        elif msg_type == "status" and content["execution_state"] == "idle":
            run.idle = True
            run.idle_at = time.monotonic()
            if run.reply:
                self.finish()

    # --- runs ---

    def start_run(self, message):
        settings = {"env": message["env"], "output": "/home/user/output"}
        if not box.isolated():
            settings["output"] = self.path("home/output")
        text = base64.b64encode(json.dumps(settings).encode()).decode()
        code = "#sandpiper:%s:%s\n%s" % (message["nonce"], text, message["code"])
        self.run = Run(self.host.wire, self.id, message["nonce"])
        self.run.msg_id = self.execute(code, False)
        self.state = "running"

    def interrupt(self):
        self.channels.send("control", "interrupt_request", {})

    def finish(self):
        if self.why:
            return  # killed; its end comes
        self.run.end_output()
        if not self.kill_leftovers():
            self.kill("processes that the code had started could not be ended")
            return
        run, self.run = self.run, None
        self.state = "ready"
        self.host.wire.tell(run.ending())
        if run.listing is None:
            log("kernel %d: a run without its hooks; preparing it again" % self.id)
            try:
                self.execute(Config.prepare, True)
            except zmq.ZMQError as error:
                self.kill("the kernel could not be prepared: %s" % error)

    def kill_leftovers(self):
        """No process outlives the run that started it: only the interpreter is a session's state. False when
        they fork faster than they can be killed; the whole sandbox, then, ends at once."""
        for _ in range(4):
            left = self.mine() - self.keepers
            if not left:
                return True
            for number in (signal.SIGSTOP, signal.SIGKILL):  # those that fork must not be faster than we
                for pid in left:
                    send_signal(pid, number)
            for _ in range(50):
                if not any([alive(pid) for pid in left]):
                    break
                time.sleep(0.002)
        return not self.mine() - self.keepers

    def mine(self):
        table = process_table()
        found = descendants(self.child.pid, table)
        if not box.isolated():
            found |= marked(self.mark.encode(), {pid: 0 for pid in table if pid not in found})
        found.discard(self.child.pid)
        return found

    # --- death ---

    def kill(self, why):
        if self.state == "gone":
            return
        self.why = self.why or why
        self.doomed |= self.mine()
        self.group.kill()
        for pid in self.doomed | {self.child.pid}:
            send_signal(pid, signal.SIGKILL)

    def on_exit(self):
        """The child has ended, by itself or by our hand."""
        status = self.child.wait()
        self.exit_code = 128 - status if status < 0 else status
        self.host.unwatch(self.pidfd)
        self.read_stderr()
        self.host.unwatch(self.stderr)
        if self.state == "running":
            self.read_rest()
            if self.run is not None:
                self.run.end_output()
                self.oom = self.oom or self.killed_for_memory()
        elif self.state == "starting":
            self.why = self.why or "the kernel did not start: " + self.last_words()
        if self.channels is not None:
            for sock in self.channels.sockets.values():
                self.host.unwatch_socket(sock)
            self.channels.close()
            self.channels = None
        self.doomed |= self.mine()
        self.drop_helpers()
        self.state = "dying"
        self.bury()

    def killed_for_memory(self):
        """By the system, not by us."""
        if self.why or self.exit_code != 137:
            return False
        return self.group.killed_for_memory() or oom_kills() > self.run.oom_before

    def read_rest(self):
        """What it published before it died."""
        deadline = time.monotonic() + 0.2
        quiet = 0
        while quiet < 3 and time.monotonic() < deadline and self.run is not None:
            if self.channels.sockets["iopub"].poll(10):
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
                self.host.unwatch(self.stderr)
                self.stderr = -1  # its number may be another kernel's soon
                return
            self.complaint = (self.complaint + data)[-4096:]

    def last_words(self):
        lines = self.complaint.decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:300] if lines else "exit status %s" % self.exit_code

    def bury(self):
        if not box.isolated():
            self.doomed |= self.mine()
        for pid in self.doomed:
            send_signal(pid, signal.SIGKILL)
        self.doomed = {pid for pid in self.doomed if alive(pid)}
        if self.doomed:
            return
        self.state = "gone"
        self.group.close()
        shutil.rmtree(self.path(self.run_dir), ignore_errors=True)
        del self.host.kernels[self.id]
        event = {"ev": "dead", "k": self.id, "code": self.exit_code, "oom": self.oom, "why": self.why}
        event["full"] = self.disk_full
        self.host.wire.tell(event)

    def drop_helpers(self):
        self.patrol.disk.close()
        if self.network is not None:
            self.network.close()

    def helpers(self):
        """Children of ours that serve it."""
        own = {self.child.pid} if self.child is not None else set()
        return own | self.patrol.disk.pids() | (self.network.pids() if self.network is not None else set())
