"""A sandbox's own file system and processes: a folder that is / in bubblewrap, and what runs in it."""

import asyncio
import errno
import os
import shutil
import signal

HOST_DIRS = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")  # the machine's own, read only
ETC = (
    "alternatives bash.bashrc ca-certificates ca-certificates.conf fonts hosts ld.so.cache ld.so.conf ld.so.conf.d"
    " localtime matplotlibrc mime.types nsswitch.conf profile protocols python3 python3.11 resolv.conf services ssl"
).split()
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/home/user",
    "USER": "user",
    "LOGNAME": "user",
    "SHELL": "/bin/bash",
    "LANG": "C.UTF-8",
    "E2B_SANDBOX": "true",
}


class Box:
    """`root` is the folder that the sandbox sees as /."""

    network = False

    def __init__(self, folder, shared):
        self.folder, self.shared = folder, shared
        self.root = os.path.join(folder, "root")
        self.run = os.path.join(folder, "run")
        self.children = set()  # asyncio subprocesses (bubblewrap's own)
        self.frozen = set()
        self.made = False

    def make(self):
        if self.made:
            return
        self.made = True
        for name in ("home/user", "root", "tmp", "etc", "proc", "dev", "usr", "run/emulator", "var/tmp", "opt", "mnt"):
            os.makedirs(os.path.join(self.root, name), exist_ok=True)
        os.makedirs(self.run, exist_ok=True)
        for name in HOST_DIRS[1:]:
            if os.path.islink("/" + name):
                os.symlink(os.readlink("/" + name), os.path.join(self.root, name))
            elif os.path.isdir("/" + name):
                os.makedirs(os.path.join(self.root, name), exist_ok=True)
        for name, content in (
            ("passwd", "root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000:user:/home/user:/bin/bash\n"),
            ("group", "root:x:0:\nuser:x:1000:\n"),
            ("hostname", "e2b.local\n"),
        ):
            with open(os.path.join(self.root, "etc", name), "w", encoding="utf-8") as f:
                f.write(content)

    def command(self, argv, cwd, env):
        self.make()
        args = ["bwrap", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
        args += [] if self.network else ["--unshare-net"]
        args += ["--uid", "1000", "--gid", "1000", "--die-with-parent", "--hostname", "e2b.local", "--clearenv"]
        for name, value in {**ENVIRONMENT, **env}.items():
            args += ["--setenv", name, value]
        args += ["--bind", self.root, "/", "--proc", "/proc", "--dev", "/dev", "--ro-bind", "/usr", "/usr"]
        for name in HOST_DIRS[1:]:
            if os.path.isdir("/" + name) and not os.path.islink("/" + name):
                args += ["--ro-bind", "/" + name, "/" + name]
        for name in ETC:
            args += ["--ro-bind-try", "/etc/" + name, "/etc/" + name]
        args += ["--bind", self.run, "/run/emulator", "--bind", self.shared, "/opt/shared"]
        return args + ["--chdir", cwd, "--", *argv]

    async def spawn(self, argv, cwd="/home/user", env=None, **pipes):
        os.makedirs(os.path.join(self.root, "opt/shared"), exist_ok=True)
        child = await asyncio.create_subprocess_exec(
            *self.command(argv, cwd, env or {}),
            env={"PATH": "/usr/local/bin:/usr/bin:/bin"},
            start_new_session=True,
            limit=1 << 20,
            **pipes,
        )
        self.children.add(child)

        async def forget():
            await child.wait()
            self.children.discard(child)

        child.forgetting = asyncio.ensure_future(forget())
        return child

    def processes(self):
        return tree(child.pid for child in self.children if child.returncode is None)

    def freeze(self):
        while True:  # what was forked while we looked is found in the next round
            new = self.processes() - self.frozen
            if not new:
                return
            for pid in new:
                send_signal(pid, signal.SIGSTOP)
            self.frozen |= new

    def thaw(self):
        for pid in self.frozen:
            send_signal(pid, signal.SIGCONT)
        self.frozen = set()

    def kill(self):
        """All processes; they are gone when `gone` returns."""
        for child in self.children:
            kill_child(child)
        self.frozen = set()

    async def gone(self):
        children = list(self.children)
        self.kill()
        for child in children:
            await child.wait()

    async def destroy(self):
        await self.gone()
        if self.made:
            await asyncio.get_running_loop().run_in_executor(None, remove, self.folder)

    # --- paths as seen in the sandbox ---

    def host(self, path, follow=True):
        """The machine's path of a path in the sandbox, and that path with its links resolved (as chroot would)."""
        self.make()
        done, rest, links = [], path.split("/")[::-1], 0
        while rest:
            part = rest.pop()
            if part in ("", "."):
                continue
            if part == "..":
                done = done[:-1]
                continue
            here = self.outside(done + [part])
            if os.path.islink(here) and (rest or follow):
                links += 1
                if links > 40:
                    raise OSError(errno.ELOOP, "too many links", path)
                target = os.readlink(here)
                if target.startswith("/"):
                    done = []
                rest += target.split("/")[::-1]
                continue
            if rest and os.path.lexists(here) and not os.path.isdir(here):
                raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
            done = done + [part]
        return self.outside(done), "/" + "/".join(done)

    def outside(self, parts):
        if parts and parts[0] == "usr":
            return "/" + "/".join(parts)
        return "/".join([self.root, *parts])


def tree(pids):
    """These processes and all below them."""
    found, stack = set(), list(pids)
    while stack:
        pid = stack.pop()
        if pid in found:
            continue
        found.add(pid)
        try:
            for task in os.listdir("/proc/%d/task" % pid):
                with open("/proc/%d/task/%s/children" % (pid, task), encoding="ascii") as f:
                    stack += [int(child) for child in f.read().split()]
        except (OSError, ValueError):
            pass
    return found


def kill_child(child):
    """With all below it: a bubblewrap that has just begun does not yet take its child along."""
    if child is None or child.returncode is not None:
        return
    send_signal(child.pid, signal.SIGSTOP)
    for pid in tree([child.pid]):
        send_signal(pid, signal.SIGKILL)


def send_signal(pid, number):
    try:
        os.kill(pid, number)
    except OSError:
        pass


def remove(folder):
    def writable(function, path, _info):
        try:
            os.chmod(os.path.dirname(path), 0o700)
            os.chmod(path, 0o700)
            function(path)
        except OSError:
            pass

    shutil.rmtree(folder, onerror=writable)
