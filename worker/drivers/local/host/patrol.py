"""What no rlimit bounds: the memory of all of a session's processes together, and its files."""

import os
import subprocess
import time

from host.config import DU_SECONDS
from host.processes import tree

PAGE = os.sysconf("SC_PAGE_SIZE")
FDS_MAX = 20000  # descriptors looked at in one check


def read(path):
    try:
        with open(path, "rb") as f:
            return f.read()
    except OSError:
        return b""


def resident(pid):
    fields = read("/proc/%d/statm" % pid).split()
    return int(fields[1]) * PAGE if len(fields) > 1 else 0


def proportional(pid):
    """Resident bytes, pages that are shared counted in parts."""
    for line in read("/proc/%d/smaps_rollup" % pid).splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) << 10
    return resident(pid)


def memory_of(pids, limit):
    """Bytes; exact only when it may be over the limit, for that takes long."""
    total = sum(map(resident, pids))
    return total if total <= limit else sum(map(proportional, pids))


def processor_ticks(pids):
    total = 0
    for pid in pids:
        fields = read("/proc/%d/stat" % pid).rpartition(b")")[2].split()
        total += int(fields[11]) + int(fields[12]) if len(fields) > 12 else 0
    return total


def deleted_files(pids, device):
    """Bytes of files on the device that are open but have no name any more: du does not see them."""
    found, looked = {}, 0
    for pid in pids:
        folder = "/proc/%d/fd/" % pid
        try:
            for name in os.listdir(folder):
                looked += 1
                if looked > FDS_MAX:
                    return sum(found.values())
                if os.readlink(folder + name).endswith(" (deleted)"):
                    st = os.stat(folder + name)
                    if st.st_dev == device:
                        found[st.st_ino] = st.st_blocks * 512
        except OSError:
            continue
    return sum(found.values())


class Disk:
    """Counts a folder with du, never waiting for it; hostile trees may take du long."""

    def __init__(self, path, limit):
        self.path, self.limit = path, limit
        self.inodes = limit >> 13  # files and folders, one for each 8 KiB
        self.child = None
        self.begun = self.due = 0.0
        self.counting_files = False

    def check(self, now, pids):
        """None, or what is wrong."""
        if not self.limit:
            return None
        if self.child is None:
            if now >= self.due:
                self.begin(now)
            return None
        if self.child.poll() is None:
            if now - self.begun < DU_SECONDS:
                return None
            self.close()
            return "the session's files could not be counted in %d s" % DU_SECONDS
        return self.end(now, pids)

    def begin(self, now):
        command = ["du", "-sx", "--inodes" if self.counting_files else "-B1", "--", self.path]
        self.child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"}, start_new_session=True,
        )
        os.set_blocking(self.child.stderr.fileno(), False)
        self.begun = now

    def end(self, now, pids):
        count = int((self.child.stdout.read().split() or [b"0"])[0])
        refused = b"Permission denied" in (self.child.stderr.read() or b"")
        self.close()
        files, self.counting_files = self.counting_files, not self.counting_files
        self.due = now + min(max(0.5, 5 * (now - self.begun)), 5.0)
        if refused:
            return "a folder of the session cannot be read, so that its files cannot be counted"
        if files:
            return None if count <= self.inodes else "the session has more than %d files" % self.inodes
        count += deleted_files(pids, os.stat(self.path).st_dev)
        if count <= self.limit:
            return None
        return "the session's files take %d MiB, more than the %d of CODE_INTERPRETER_LOCAL_DISK_MB" % (
            count >> 20, self.limit >> 20)

    def pids(self):
        return {self.child.pid} if self.child is not None else set()

    def close(self):
        if self.child is not None:
            self.child.kill()
            self.child.wait()
            self.child.stdout.close()
            self.child.stderr.close()
            self.child = None


class Patrol:
    """Looks after one kernel: often while code runs, seldom (and only if it works) when it is idle."""

    def __init__(self, path, limits):
        self.memory = (limits.get("memory_mb") or 0) << 20
        self.disk = Disk(path, (limits.get("disk_mb") or 0) << 20)
        self.at = 0.0
        self.ticks = 0
        self.after_run = False

    def look(self, root, running):
        """(kind, reason) when the kernel must be killed, else None; kind is "memory" or "disk"."""
        now = time.monotonic()
        if now < self.at:
            return None
        found = self.judge(root, running, now)
        self.at = now + (0.2 if running or self.disk.child else 2.0)
        return found

    def judge(self, root, running, now):
        pids = tree(root)
        taken = memory_of(pids, self.memory) if self.memory else 0
        if taken > self.memory:
            return "memory", "the session's processes took %d MiB, more than the %d of %s" % (
                taken >> 20, self.memory >> 20, "CODE_INTERPRETER_LOCAL_MEMORY_MB")
        if running or self.after_run or self.disk.child or self.has_worked(pids):
            self.after_run = running
            reason = self.disk.check(now, pids)
            return ("disk", reason) if reason else None
        return None

    def has_worked(self, pids):
        before, self.ticks = self.ticks, processor_ticks(pids)
        return self.ticks > before + 5
