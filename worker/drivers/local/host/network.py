"""A sandbox's way to the internet: slirp4netns in its network namespace, private addresses closed before code runs."""

import ctypes
import fcntl
import json
import os
import re
import subprocess

from host.config import Config
from host.processes import drop_user, libc, protect

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
NS_GET_USERNS = 0xB701
# Not the internet (IANA's special-purpose registry). slirp's own 10.0.2.0/24 is more specific than 10.0.0.0/8.
CLOSED = (
    "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24"
    " 192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4"
).split()
TAP_FILE = "/dev/net/tun"
RESOLVER = "10.0.2.3"  # slirp's; it asks the machine's


def own_addresses():
    """This machine's: a public one, too, would lead to services that listen here."""
    run = subprocess.run(["ip", "-o", "-4", "addr", "show"], capture_output=True, text=True, check=True)
    return sorted(set(re.findall(r" inet ([0-9.]+)", run.stdout)))


class Network:
    """info -> tap -> open. bwrap waits with the code until it is open; no IPv6 at all."""

    def __init__(self, uid):
        self.uid = uid
        self.slirp = self.routes = None
        self.info = b""
        self.net = self.user = -1
        self.info_read, self.info_write = os.pipe()
        self.block_read, self.block_write = os.pipe()
        self.ready_read, self.ready_write = os.pipe()
        self.exit_read, self.exit_write = os.pipe()
        for fd in (self.info_read, self.ready_read):
            os.set_blocking(fd, False)
        self.is_open = False

    def arguments(self):
        """Of bwrap; info_write and block_read are to be passed on to it."""
        return ["--info-fd", str(self.info_write), "--block-fd", str(self.block_read)]

    def spawned(self):
        self.close_fd("info_write")
        self.close_fd("block_read")

    def step(self):
        """Goes on; True when the network is open. OSError when that cannot be."""
        if self.slirp is None:
            self.info += read_some(self.info_read)
            if b"}" in self.info:
                self.begin_when_mapped(json.loads(self.info)["child-pid"])
        elif not self.is_open:
            self.look()
        return self.is_open

    def begin_when_mapped(self, pid):
        """Before its users are mapped, a program started in its namespace would lose all privileges there."""
        with open("/proc/%d/uid_map" % pid) as f:
            if f.read():
                self.begin(pid)

    def begin(self, pid):
        self.net = os.open("/proc/%d/ns/net" % pid, os.O_RDONLY | os.O_CLOEXEC)
        # Its owner, not the process's own user namespace: bwrap makes a second one for the code.
        self.user = fcntl.ioctl(self.net, NS_GET_USERNS)
        # Only root may open the device on some machines. A user's slirp4netns is in the namespace from the start: by
        # itself it finds the way of root only. It shuts itself in, either way.
        tap_for_all = os.stat(TAP_FILE).st_mode & 0o006 == 0o006
        command = ["slirp4netns", "--configure", "--mtu=65520", "--disable-host-loopback", "--enable-sandbox"]
        command += ["--enable-seccomp", "--ready-fd", str(self.ready_write), "--exit-fd", str(self.exit_read)]
        command += [] if tap_for_all else ["--userns-path=/proc/self/fd/%d" % self.user]
        command += ["--netns-type=path", "/proc/self/fd/%d" % self.net, "tap0"]
        fds = (self.ready_write, self.exit_read, self.net, self.user)
        self.slirp = self.spawn(command, fds, self.join if tap_for_all else lambda: protect(0), subprocess.PIPE)
        self.close_fd("ready_write")
        self.close_fd("exit_read")
        self.routes = self.spawn(["ip", "-batch", "-"], (), self.enter, subprocess.PIPE, subprocess.PIPE)
        lines = "".join("route add prohibit %s\n" % net for net in CLOSED + own_addresses())
        self.routes.stdin.write(lines.encode())
        self.routes.stdin.close()

    def spawn(self, command, fds, preexec, stderr, stdin=subprocess.DEVNULL):
        return subprocess.Popen(
            command, stdin=stdin, stdout=subprocess.DEVNULL, stderr=stderr, pass_fds=fds, preexec_fn=preexec,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}, start_new_session=True,
        )

    def join(self):
        """In the child: among the users of the sandbox's network, in the machine's."""
        drop_user(self.uid)
        set_namespace(self.user, CLONE_NEWUSER)
        protect(None)

    def enter(self):
        """In the child: into the sandbox's network, whose owner may change it."""
        drop_user(self.uid)
        set_namespace(self.user, CLONE_NEWUSER)
        set_namespace(self.net, CLONE_NEWNET)

    def look(self):
        """Opens when the routes are closed and slirp is ready."""
        status = self.routes.poll()
        if status is None:
            return
        if status != 0:
            raise OSError("private addresses could not be closed: " + complaint(self.routes))
        if b"1" in read_some(self.ready_read):
            os.write(self.block_write, b"x")
            self.close_fd("block_write")
            self.is_open = True
        elif self.slirp.poll() is not None:
            raise OSError("slirp4netns: " + complaint(self.slirp))

    def pids(self):
        return {child.pid for child in (self.slirp, self.routes) if child is not None}

    def close_fd(self, name):
        if getattr(self, name) >= 0:
            os.close(getattr(self, name))
            setattr(self, name, -1)

    def close(self):
        for child in (self.slirp, self.routes):
            if child is not None:
                child.kill()
                child.wait()
                for pipe in (child.stdin, child.stderr):
                    if pipe is not None:
                        pipe.close()
        for name in ("info_read", "info_write", "block_read", "block_write", "ready_read", "ready_write",
                     "exit_read", "exit_write", "net", "user"):
            self.close_fd(name)


def set_namespace(fd, kind):
    if libc.setns(fd, kind) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def read_some(fd):
    try:
        return os.read(fd, 4096)
    except BlockingIOError:
        return b""


def complaint(child):
    os.set_blocking(child.stderr.fileno(), False)
    lines = (child.stderr.read() or b"").decode("utf-8", "replace").strip().splitlines()
    lines = [line for line in lines if not line.startswith(("WARNING", "sent tapfd", "received tapfd"))]
    return (lines[0] if lines else "exit status %s" % child.returncode)[:200]


def wanted():
    return Config.isolation == "bwrap" and Config.network == "internet"
