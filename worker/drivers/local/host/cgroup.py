"""A control group (v2) for each kernel, where the worker's own was given to it, as by systemd's Delegate=yes."""

import errno
import os
import subprocess

from host.processes import descendants, log, process_table

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
        self.names = set()  # of the groups in use
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
                move_worker(folder)
            self.controllers = [name for name in self.controllers if enabled(folder, name)]
            if not self.controllers:
                self.why = "none of the cgroup's controllers can be used"
                return
            self.folder = os.path.join(folder, "sandpiper-" + token)
            os.makedirs(self.folder, exist_ok=True)
            for name in self.controllers:
                write(self.folder + "/cgroup.subtree_control", "+" + name)
            self.try_out()
        except (OSError, subprocess.SubprocessError) as error:
            self.close()
            self.why = "the cgroup cannot be divided: %s" % (getattr(error, "strerror", None) or error)

    def try_out(self):
        """Whether a process can be put into a group of ours; better now than at the start of each kernel."""
        group = Group(self, "trial", {})
        try:
            if group.folder is None:
                raise OSError(errno.EACCES, "no group can be made in it")
            subprocess.run(["true"], stdin=subprocess.DEVNULL, preexec_fn=group.enter, check=False)
        finally:
            group.close()

    def describe(self):
        if self.folder is None:
            return "no cgroup limits (%s)" % self.why
        return "cgroup v2 limits: %s" % ", ".join(self.controllers)

    def clear(self):
        """Removes groups without processes: those of killed kernels, and of a host that was killed."""
        for entry in os.scandir(self.folder) if self.folder is not None else ():
            if entry.is_dir() and entry.name not in self.names:
                remove(entry.path)

    def close(self):
        self.names.clear()
        self.clear()
        remove(self.folder)
        self.folder = None


class Group:
    """One kernel's; every method is safe when there are no groups."""

    def __init__(self, groups, name, limits):
        self.folder = None
        self.groups, self.name = groups, name
        if groups.folder is None:
            return
        folder = os.path.join(groups.folder, name)
        try:
            groups.clear()
            os.mkdir(folder)
        except OSError as error:
            log("no cgroup for a session: %s" % error)
            return
        self.folder = folder
        groups.names.add(name)
        for file, value in self.limits(groups.controllers, limits):
            try:
                write(os.path.join(folder, file), value)
            except OSError as error:
                if file != "memory.swap.max":  # which is there only where swap is accounted for
                    log("a session's cgroup: %s: %s" % (file, error.strerror))

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
        """A killed process may still be on its way out: what cannot be removed now is when groups are cleared."""
        self.groups.names.discard(self.name)
        remove(self.folder)
        self.folder = None


def move_worker(folder):
    """All of the worker's processes, into a leaf; also those that begin meanwhile."""
    worker = os.getppid()
    for _ in range(100):
        members = [int(pid) for pid in read(folder + "/cgroup.procs").split()]
        if not members:
            return
        table = process_table()
        own = descendants(worker, table) | {worker}
        # 0: one of another PID namespace. Who is in no table has just ended.
        if any(pid not in own and (pid == 0 or pid in table) for pid in members):
            raise OSError(errno.EBUSY, "other processes than the worker are in it")
        os.makedirs(os.path.join(folder, LEAF), exist_ok=True)
        for pid in members:
            try:
                write(os.path.join(folder, LEAF, "cgroup.procs"), str(pid))
            except ProcessLookupError:
                pass
    raise OSError(errno.EBUSY, "the worker's processes cannot be moved out of it")


def enabled(folder, controller):
    try:
        write(folder + "/cgroup.subtree_control", "+" + controller)
        return True
    except OSError:
        return False


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
