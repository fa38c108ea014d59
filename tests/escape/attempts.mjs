// What hostile code tries. Each attempt is Python whose try_it() returns something true when it got out. Second: who
// gets out where code is not isolated. There the attempt is run for real, by root too: it must change nothing on the
// machine (open, never write; no mounts; no signal but 0; no folder, socket or process but this file's own), else its
// list stays empty and it runs isolated only.

export const prelude = `
import ctypes, fcntl, glob, os, platform, pty, resource, signal, socket, stat, struct, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
held = ctypes.PyDLL(None, use_errno=True)  # keeps Python's lock: a clone would wait for it for ever
ARM = platform.machine() == "aarch64"
def in_child(work):
    """work() in a process of its own; true when it says so."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if work() else 1
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0
def call(x86, arm, *args):
    """A system call: its result, or minus errno."""
    result = held.syscall(ctypes.c_long(arm if ARM else x86), *(ctypes.c_long(a) for a in args))
    return result if result >= 0 else -ctypes.get_errno()
def known(result):
    """It went past the gate: neither refused nor unknown."""
    return result not in (-1, -38)
def talk(family, address, data=b"PING\\r\\n"):
    with socket.socket(family) as s:
        s.settimeout(5)
        s.connect(address)
        s.sendall(data)
        return b"PONG" in s.recv(64)
def text(path):
    try:
        return open(path, errors="replace").read()
    except OSError:
        return ""
def opens(path, flags=os.O_WRONLY):
    os.close(os.open(path, flags))
    return True
def attempt(work):
    try:
        print("ESCAPED" if work() else "refused")
    except BaseException as error:
        print("refused:", type(error).__name__, error)
`;

const EVERYONE = ['root', 'nobody', 'self'];
const ROOT = ['root'];

/** what: facts about the world outside; see world() in escape.test.mjs */
export const attempts = (what) => [
  ['the worker\'s environment', ROOT, `
def try_it():
    return any("${what.canary}" in text(f"/proc/{p}/environ") for p in (1, os.getppid(), ${what.worker}))`],
  ['its own environment', [], `
def try_it():
    return "${what.canary}" in repr(dict(os.environ)) + open("/proc/self/environ").read()`],
  ['the processes of the machine', EVERYONE, `
def try_it():
    return any(open(f).read() == "redis-server\\n" for f in glob.glob("/proc/[0-9]*/comm"))`],
  ['the files of another session', EVERYONE, `
def try_it():
    return any("${what.secret}" in open(f).read() for f in glob.glob("${what.sessions}/home/secret.txt"))`],
  ['another session\'s interpreter', EVERYONE, `
def try_it():
    for path in glob.glob("${what.sessions}/run*/s-1"):
        if path.startswith(os.path.dirname(os.getcwd()) + "/run"):  # its own
            continue
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(path)
            return True`],
  ['Redis by its port', EVERYONE, `
def try_it():
    return talk(socket.AF_INET, ("127.0.0.1", ${what.redisPort}))`],
  ['Redis by its socket', EVERYONE, `
def try_it():
    return talk(socket.AF_UNIX, "${what.redisSocket}")`],
  ['an abstract socket of the machine', EVERYONE, `
def try_it():
    return talk(socket.AF_UNIX, "\\0${what.abstractName}")`],
  ['a server on another address of the machine', EVERYONE, `
def try_it():
    return talk(socket.AF_INET, ("${what.address}", ${what.serverPort}))`],
  ['the metadata service of clouds', [], `
def try_it():
    with socket.create_connection(("169.254.169.254", 80), 2):
        return True`],
  ['killing a foreign process', EVERYONE, `
def try_it():
    os.kill(${what.sleeper}, 0)
    return open("/proc/${what.sleeper}/comm").read() == "sleep\\n"`],
  ['tracing a foreign process', ROOT, `
def try_it():
    if libc.ptrace(16, ${what.sleeper}, 0, 0) == 0:
        os.waitpid(${what.sleeper}, 0x40000000)
        return libc.ptrace(17, ${what.sleeper}, 0, 0) == 0`],
  ['ptrace at all', EVERYONE, `
def try_it():
    return in_child(lambda: libc.ptrace(0, 0, 0, 0) == 0)`],
  ['a folder outside', EVERYONE, `
def try_it():
    return os.listdir("/var") and opens("${what.outside}/written", os.O_WRONLY | os.O_CREAT)`],
  ['a file outside through /proc', EVERYONE, `
def try_it():
    return any(os.path.exists(p + "${what.outside}/marker") for p in glob.glob("/proc/[0-9]*/root") + glob.glob("/proc/[0-9]*/cwd/../../../../.."))`],
  ['a hard link to a file outside', EVERYONE, `
def try_it():
    os.link("${what.outside}/marker", os.path.expanduser("~/linked"))
    return True`],
  ['the system\'s files', ROOT, `
def try_it():
    return opens("/usr/lib/os-release")  # no program: nobody could start it meanwhile`],
  ['kernel settings: where cores go', ROOT, `
def try_it():
    return opens("/proc/sys/kernel/core_pattern")`],
  ['kernel settings: sysrq', [], `
def try_it():
    return opens("/proc/sysrq-trigger")`],
  ['the kernel\'s memory', [], `
def try_it():
    return opens("/proc/kcore", os.O_RDONLY)`],
  ['a device of its own making', ROOT, `
def try_it():
    os.mknod("device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    try:
        return opens("device", os.O_RDONLY)
    finally:
        os.unlink("device")`],
  ['another root', ROOT, `
def try_it():
    return in_child(lambda: os.chroot(".") is None)`],
  ['mounting', [], `
def try_it():
    return libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0`],
  ['a user namespace by unshare', EVERYONE, `
def try_it():
    return in_child(lambda: libc.unshare(0x10000000) == 0)`],
  ['a user namespace by clone', EVERYONE, `
def try_it():
    pid = call(56, 220, 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    return pid > 0 and os.waitpid(pid, 0)`],
  ['a user namespace by clone3', EVERYONE, `
def try_it():
    args = (ctypes.c_uint64 * 8)(0x10000000, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
    pid = call(435, 435, ctypes.addressof(args), 64)
    if pid == 0:
        os._exit(0)
    return pid > 0 and os.waitpid(pid, 0)`],
  ['another process\'s namespaces', [], `
def try_it():
    return in_child(lambda: libc.setns(os.open("/proc/1/ns/net", os.O_RDONLY), 0) == 0)`],
  ['a setuid program', EVERYONE, `
def try_it():
    su = subprocess.Popen(["/usr/bin/su", "root"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 20
    while "su\\n" != open(f"/proc/{su.pid}/comm").read() and time.monotonic() < deadline:
        time.sleep(0.01)
    uids = next(line for line in open(f"/proc/{su.pid}/status") if line.startswith("Uid:")).split()
    su.kill()
    return uids[2] == "0"`],
  ['typing into a terminal (TIOCSTI)', ROOT, `
def try_it():
    pid, terminal = pty.fork()
    if pid == 0:
        try:
            fcntl.ioctl(0, 0x5412, b"x")
            os._exit(0)
        except OSError as error:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0`],
  ['TIOCSTI with bits above the number', ROOT, `
def try_it():
    pid, terminal = pty.fork()
    if pid == 0:
        text = ctypes.create_string_buffer(b"x")
        os._exit(0 if call(16, 29, 0, 0x5412 | 1 << 33, ctypes.addressof(text)) == 0 else 1)
    return os.waitpid(pid, 0)[1] == 0`],
  ['kernel keys', EVERYONE, `
def try_it():
    return known(call(250, 219, 0, -4, 1))`],
  ['BPF', ROOT, `
def try_it():
    return known(call(321, 280, 0, 0, 0))`],
  ['userfaultfd', ROOT, `
def try_it():
    return known(call(323, 282, 0))`],
  ['io_uring', [], `
def try_it():
    return known(call(425, 425, 0, 0))`],
  ['perf events', [], `
def try_it():
    return known(call(298, 241, 0, 0, -1, -1, 0))`],
  ['another process\'s memory', EVERYONE, `
def try_it():
    return known(call(310, 270, os.getpid(), 0, 0, 0, 0, 0))`],
  ['files without a name in memory', EVERYONE, `
def try_it():
    return os.memfd_create("x") >= 0`],
  ['shared memory of System V', EVERYONE, `
def try_it():
    return libc.shmget(0, 4096, 0o1600) >= 0`],
  ['netlink beyond addresses', EVERYONE, `
def try_it():
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15).close()
    return True`],
  ['raw packets', ROOT, `
def try_it():
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()
    return True`],
  ['protocols of the kernel (vsock, crypto)', [], `
def try_it():
    for family in (socket.AF_VSOCK, socket.AF_ALG, 17, 4, 9):
        try:
            socket.socket(family, socket.SOCK_STREAM).close()
            return True
        except OSError:
            pass`],
  ['higher limits', [], `
def try_it():
    resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY,) * 2)
    return True`],
  ['a core file', [], `
def try_it():
    in_child(lambda: ctypes.string_at(0))
    return glob.glob("core*") or glob.glob("/tmp/core*") or resource.getrlimit(resource.RLIMIT_CORE)[1] > 1`],
  ['calls of another ABI', [], `
def try_it():
    return not ARM and libc.syscall(ctypes.c_long(0x40000000 | 39)) > 0`],
  ['more processes than allowed', ROOT, `
def try_it():
    count = 0
    try:
        for _ in range(150):
            if os.fork() == 0:
                signal.pause()
                os._exit(0)
            count += 1
    finally:
        print(count, "processes")
    return count == 150`],
];
