"""Finding and ending processes; small services of the system."""

import collections
import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

libc = ctypes.CDLL(None, use_errno=True)


def log(text):
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def write_file(path, data, mode=0o644):
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode), "wb") as f:
        f.write(data)


def drop_user(uid):
    """In a child: become the user that the worker, as root, gave to a session; 0: stay who we are."""
    if uid:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)


def protect(uid):
    """In a child, before exec: die with us. After the change of user, which would undo it."""
    drop_user(uid)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def tree(root):
    """A process and its descendants; cheaper than process_table where the system is large, if its kernel can."""
    if not os.path.exists("/proc/self/task/%d/children" % os.getpid()):
        return [root, *descendants(root, process_table())]
    found, at = [root], 0
    while at < len(found):
        pid = found[at]
        at += 1
        try:
            for task in os.listdir("/proc/%d/task" % pid):
                with open("/proc/%d/task/%s/children" % (pid, task), "rb") as f:
                    found += [int(child) for child in f.read().split()]
        except OSError:
            continue
    return found


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


def reap_orphans(known):
    """User processes whose parents died come to us when there is no PID namespace."""
    try:
        # WNOWAIT: look first, a known child's status belongs to its own wait.
        info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        while info is not None and info.si_pid not in known:
            os.waitpid(info.si_pid, os.WNOHANG)
            info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except OSError:
        pass


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
