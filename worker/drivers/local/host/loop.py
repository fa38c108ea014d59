"""The host's poll loop: commands of the worker, sockets of the kernels, deaths, folders to remove."""

import os
import shutil
import signal
import subprocess
import time

import zmq

from host import box, seccomp
from host.cgroup import Groups
from host.config import Config
from host.kernel import Kernel
from host.processes import PR_SET_CHILD_SUBREAPER, libc, log, marked, process_table, reap_orphans, send_signal
from host.wire import Wire


class Host:
    def __init__(self):
        self.context = zmq.Context()
        self.poller = zmq.Poller()
        self.wire = Wire(self.poller)
        self.kernels = {}
        self.groups = Groups()
        self.by_socket, self.by_fd = {}, {}
        self.removing = {}  # child -> folder
        self.last_turn = time.monotonic()
        self.reading = True  # iopub sockets are polled

    # --- what is polled ---

    def watch(self, fd, kernel):
        self.poller.register(fd, zmq.POLLIN)
        self.by_fd[fd] = kernel

    def unwatch(self, fd):
        """Closes it, too."""
        if fd in self.by_fd:
            self.poller.unregister(fd)
            del self.by_fd[fd]
            os.close(fd)

    def watch_socket(self, sock, kernel, name):
        self.poller.register(sock, zmq.POLLIN if name != "iopub" or self.reading else 0)
        self.by_socket[sock] = (kernel, name)

    def unwatch_socket(self, sock):
        self.poller.unregister(sock)
        del self.by_socket[sock]

    def poll_iopub(self):
        """While the worker does not take what there is, kernels are not read and wait."""
        reading = not self.wire.full()
        if reading == self.reading:
            return
        self.reading = reading
        for sock, (_, name) in self.by_socket.items():
            if name == "iopub":
                self.poller.modify(sock, zmq.POLLIN if reading else 0)

    # --- the worker's commands ---

    def obey_all(self):
        for message in self.wire.read():
            try:
                self.obey(message)
            except (OSError, ValueError, zmq.ZMQError, subprocess.SubprocessError) as error:
                if message["op"] == "config":
                    raise
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
            kernel.interrupt()

    def configure(self, message):
        Config.take(message)
        os.chdir(Config.base)
        box.make_etc()
        if box.isolated():
            Config.seccomp = seccomp.program()
            self.groups.setup(Config.token)
        if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            log("no child subreaper: processes that user code leaves behind may escape")
        for pid in marked(Config.token.encode(), process_table()):
            send_signal(pid, signal.SIGKILL)  # of a host that was killed
        self.wire.tell({"ev": "hello", "limits": self.groups.describe() if box.isolated() else ""})

    def start(self, kid, folder, limits):
        kernel = self.kernels[kid] = Kernel(self, kid, folder, limits)
        try:
            kernel.start()
        except (OSError, subprocess.SubprocessError) as error:
            why = "the kernel did not start: %s" % error
            if kernel.child is not None:
                kernel.kill(why)
                return
            kernel.drop_helpers()
            kernel.group.close()
            del self.kernels[kid]
            self.wire.tell({"ev": "dead", "k": kid, "code": 1, "oom": False, "why": why})

    def remove(self, path, folder):
        script = 'rm -rf -- "$1" 2>/dev/null || { chmod -R u+rwX -- "$1"; rm -rf -- "$1"; }'
        command = ["/bin/sh", "-c", script, "sh", path]
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.removing[child] = folder

    def sweep(self, path):
        for pid in marked(os.path.basename(path).encode(), process_table()):
            send_signal(pid, signal.SIGKILL)
        self.remove(path, None)

    # --- the loop ---

    def reap(self):
        for child, folder in list(self.removing.items()):
            if child.poll() is not None:
                del self.removing[child]
                if folder is not None:
                    self.wire.tell({"ev": "removed", "dir": folder})
        known = {child.pid for child in self.removing}
        for kernel in self.kernels.values():
            known |= kernel.helpers()
        reap_orphans(known)

    def watch_worker(self, now):
        """A worker that is stopped or cut off may have lost its locks: its code must not go on."""
        if now - self.last_turn > 2:  # it is we who slept
            self.wire.last_heard += now - self.last_turn
        self.last_turn = now
        if now - self.wire.last_heard > Config.silence_s:
            for kernel in list(self.kernels.values()):
                if kernel.state == "running":
                    kernel.kill("the worker gave no sign of life")

    def timeout(self):
        busy = any(kernel.state in ("starting", "dying") or (kernel.run and kernel.run.idle)
                   for kernel in self.kernels.values())
        if busy or self.removing:
            return 10
        return 200 if any(kernel.state == "running" for kernel in self.kernels.values()) else 500

    def dispatch(self, source):
        if source == 0:
            self.obey_all()
        elif source == 1:
            self.wire.write()
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
        if self.wire.queue:
            self.wire.write()
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
        self.groups.close()
        if self.wire.ended and Config.base:  # after a fault of ours the worker's sessions go on without us
            os.chdir("/")
            shutil.rmtree(Config.base, ignore_errors=True)
