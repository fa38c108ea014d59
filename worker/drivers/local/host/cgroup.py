"""A control group (v2) for each kernel, where the worker's own was given to it, as by systemd's Delegate=yes."""

import errno
import os

from host.processes import process_table

LEAF = "sandpiper-worker"
WANTED = ("memory", "pids", "cpu")


def read(path):
    try:
        with open(path) as f:
            return f.read()
    except OSError:
        return ""


def own_folder():
    """The folder of this process's group in the unified hierarchy, or None."""
    own = next((line[3:] for line in read("/proc/self/cgroup").splitlines() if line.startswith("0::")), None)
    for line in read("/proc/self/mountinfo").splitlines():
        fields = line.split()
        if own is not None and fields[fields.index("-") + 1] == "cgroup2":
            return os.path.normpath(os.path.join(fields[4], os.path.relpath(own, fields[3])))
    return None


class Groups:
    """The parent of the kernels' groups."""

    def __init__(self):
        self.folder = None
        self.controllers = []
        self.why = ""

    def setup(self, token):
        folder = own_folder()
        if folder is None or not os.path.isdir(folder):
            self.why = "no cgroup v2"
            return
        if os.path.basename(folder) == LEAF:  # an earlier driver of this worker has moved us
            folder = os.path.dirname(folder)
        have = read(folder + "/cgroup.controllers").split()
        self.controllers = [name for name in WANTED if name in have]
        if not self.controllers:
            self.why = "the cgroup has no controllers"
        elif not os.access(folder, os.W_OK) or not os.access(folder + "/cgroup.subtree_control", os.W_OK):
            self.why = "the cgroup is not delegated to the worker"
        else:
            self.take(folder, token)

    def take(self, folder, token):
        """A group with processes may have no controlled children: the worker goes into a leaf first."""
        try:
            if os.path.exists(folder + "/cgroup.type"):  # the root has no such file, and no such rule
                self.move_worker(folder)
            for name in list(self.controllers):
                try:
                    write(folder + "/cgroup.subtree_control", "+" + name)
                except OSError:
                    self.controllers.remove(name)
            self.folder = os.path.join(folder, "sandpiper-" + token)
            os.makedirs(self.folder, exist_ok=True)
            for name in self.controllers:
                write(self.folder + "/cgroup.subtree_control", "+" + name)
        except OSError as error:
            self.folder, self.why = None, "the cgroup cannot be divided: %s" % error

    def move_worker(self, folder):
        worker = os.getppid()
        table = process_table()
        members = [int(pid) for pid in read(folder + "/cgroup.procs").split()]
        for pid in members:
            if pid != worker and pid != os.getpid() and table.get(pid) != worker:
                raise OSError(errno.EBUSY, "other processes than the worker are in it")
        if members:
            os.makedirs(os.path.join(folder, LEAF), exist_ok=True)
        for pid in members:
            write(os.path.join(folder, LEAF, "cgroup.procs"), str(pid))

    def describe(self):
        if self.folder is None:
            return "no cgroup limits (%s)" % self.why
        return "cgroup v2 limits: %s" % (", ".join(self.controllers) or "none")

    def close(self):
        remove(self.folder)


class Group:
    """One kernel's; every method is safe when there are no groups."""

    def __init__(self, groups, name, limits):
        self.folder = None
        if groups.folder is None:
            return
        folder = os.path.join(groups.folder, name)
        try:
            os.mkdir(folder)
        except OSError:
            return
        self.folder = folder
        for file, value in self.limits(groups.controllers, limits):
            try:
                write(os.path.join(folder, file), value)
            except OSError:
                pass  # e.g. no accounting of swap

    @staticmethod
    def limits(controllers, limits):
        if "memory" in controllers and limits.get("memory_mb"):
            yield "memory.max", str(limits["memory_mb"] << 20)
            yield "memory.swap.max", "0"
            yield "memory.oom.group", "1"
        if "pids" in controllers and limits.get("max_processes"):
            yield "pids.max", str(limits["max_processes"] + 8)  # bwrap's own, too
        if "cpu" in controllers:
            yield "cpu.weight", "50"

    def enter(self):
        """In the child."""
        if self.folder is not None:
            write(self.folder + "/cgroup.procs", "0")

    def killed_for_memory(self):
        lines = read(self.folder + "/memory.events").splitlines() if self.folder is not None else []
        return any(line.startswith("oom_kill ") and line.split()[1] != "0" for line in lines)

    def kill(self):
        if self.folder is not None:
            try:
                write(self.folder + "/cgroup.kill", "1")
            except OSError:
                pass

    def close(self):
        remove(self.folder)
        self.folder = None


def remove(folder):
    """A group's folder, which the kernel keeps while something is in it; or None."""
    if folder is not None:
        try:
            os.rmdir(folder)
        except OSError:
            pass


def write(path, text):
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
