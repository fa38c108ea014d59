"""A kernel's sandbox: bubblewrap's arguments, limits, environment."""

import os
import resource
import subprocess

from host import network
from host.config import Config
from host.processes import protect, write_file

PATH = "/usr/local/bin:/usr/bin:/bin"
ETC = (
    "alternatives ca-certificates ca-certificates.conf fonts ld.so.cache ld.so.conf ld.so.conf.d localtime"
    " magic matplotlibrc mime.types nsswitch.conf protocols services ssl timezone"
).split()
HOST_ETC = ("hosts", "resolv.conf")  # of the machine only where its network is


def isolated():
    return Config.isolation == "bwrap"


def make_etc():
    """What a sandbox sees of users and names; in the working directory, the base."""
    os.makedirs("etc", mode=0o755, exist_ok=True)
    write_file("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/bash\n")
    write_file("etc/group", b"root:x:0:\nuser:x:1000:\n")
    write_file("etc/hosts", b"127.0.0.1 localhost sandpiper\n::1 localhost\n")
    resolver = "nameserver %s\n" % network.RESOLVER if network.wanted() else ""
    write_file("etc/resolv.conf", resolver.encode())


def environment(kernel):
    """All that code sees of ours. Without isolation there is no /home/user: HOME, the working directory and
    OUTPUT_DIR name the session's folder instead, and code is never rewritten."""
    home = "/home/user" if isolated() else kernel.path("home")
    env = {
        "PATH": PATH,
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
    if not isolated():
        env["TMPDIR"] = kernel.path("tmp")
    return env


def python_folders():
    """Where the interpreter and its packages are, if not in /usr: a venv, and the Python that it is made of."""
    folders = []
    for path in (os.path.realpath(Config.python), os.path.abspath(Config.python)):
        top = os.path.dirname(os.path.dirname(path))
        if not path.startswith(("/usr/", "/bin/")) and top not in folders:
            folders.append(top)
    return folders


def system_arguments():
    """The machine's programs and some of its /etc, read-only."""
    args = ["--proc", "/proc", "--dev", "/dev", "--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = "/" + name
        if os.path.islink(path):
            args += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            args += ["--ro-bind", path, path]
    shared = HOST_ETC if Config.network == "host" else ()
    for name in ETC + list(shared) + [name for name in os.listdir("/etc") if name.startswith("python3")]:
        args += ["--ro-bind-try", "/etc/" + name, "/etc/" + name]
    for name in os.listdir(os.path.join(Config.base, "etc")):
        if name not in shared:
            args += ["--ro-bind", os.path.join(Config.base, "etc", name), "/etc/" + name]
    for folder in python_folders():
        args += ["--ro-bind", folder, folder]
    return args


def bwrap_arguments(kernel):
    args = ["--unshare-all", "--unshare-user", "--uid", "1000", "--gid", "1000"]
    args += ["--share-net"] if Config.network == "host" else []
    args += ["--die-with-parent", "--new-session", "--cap-drop", "ALL", "--hostname", "sandpiper", "--clearenv"]
    for name, value in environment(kernel).items():
        args += ["--setenv", name, value]
    args += system_arguments()
    args += ["--bind", kernel.path("tmp"), "/tmp", "--bind", kernel.path("home"), "/home/user"]
    args += ["--bind", kernel.path(kernel.run_dir), kernel.inside]
    # A tmpfs would be memory, and inodes, that no limit of ours counts.
    args += ["--bind", kernel.path(kernel.run_dir + "/shm"), "/dev/shm"]
    # So are bwrap's own: what is mounted in them stays as it is.
    return args + ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/home/user"]


def memory_file(name, data):
    """A file without a name that bwrap reads; it closes it before it starts anything."""
    fd = os.memfd_create(name)
    with open(fd, "wb", closefd=False) as f:
        f.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def max_processes(wanted):
    """The limit set inside a sandbox, where (since Linux 5.14) it counts the sandbox's own. Before, and outside,
    it counts all processes of the user, other sessions' too, unless each has a user of its own. 0: none."""
    release = os.uname().release.split(".")
    recent = tuple(int("".join(filter(str.isdigit, part[:3])) or 0) for part in release[:2]) >= (5, 14)
    return int(wanted.get("max_processes") or 0) if isolated() and (recent or wanted.get("uid")) else 0


def limits_of(wanted):
    # 1, not 0: a program that the system pipes core files to is not even started.
    limits = [(resource.RLIMIT_CORE, 1, 1), (resource.RLIMIT_NOFILE, 4096, 4096)]
    if wanted.get("memory_mb"):
        size = wanted["memory_mb"] << 20
        limits += [(resource.RLIMIT_DATA, size, size), (resource.RLIMIT_AS, *[2 * size + (4 << 30)] * 2)]
    if wanted.get("file_mb"):
        limits.append((resource.RLIMIT_FSIZE, *[wanted["file_mb"] << 20] * 2))
    if wanted.get("cpu_s"):
        limits.append((resource.RLIMIT_CPU, wanted["cpu_s"], wanted["cpu_s"] + 5))
    return limits


def limit_and_protect(kernel):
    """In the child, before exec."""
    kernel.group.enter()
    for which, soft, hard in limits_of(kernel.limits):
        try:
            top = resource.getrlimit(which)[1]
            if top != resource.RLIM_INFINITY:
                soft, hard = min(soft, top), min(hard, top)
            resource.setrlimit(which, (soft, hard))
        except (OSError, ValueError):
            pass
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(fd, b"700")
        os.close(fd)
    except OSError:
        pass
    os.umask(0o022)
    protect(kernel.uid)


def in_bwrap(kernel, command):
    """The command line, and the descriptors that bwrap needs for it."""
    args = bwrap_arguments(kernel)
    fds = [memory_file("seccomp", Config.seccomp)]
    args += ["--seccomp", str(fds[0])]
    if kernel.network is not None:
        args += kernel.network.arguments()
    # In a file, so that `ps` shows a line that people can read.
    fds.append(memory_file("bwrap-args", b"".join(os.fsencode(arg) + b"\0" for arg in args)))
    return ["bwrap", "--args", str(fds[1]), "--"] + command, fds


def spawn(kernel, command, stderr):
    """The command in the kernel's sandbox: a child. kernel: path(), run_dir, inside, mark, limits, uid, group,
    network."""
    fds, passed = [], []
    if isolated():
        command, fds = in_bwrap(kernel, command)
        passed = list(fds)
        if kernel.network is not None:
            passed += [kernel.network.info_write, kernel.network.block_read]
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            cwd="/" if isolated() else kernel.path("home"),
            env={"PATH": PATH} if isolated() else environment(kernel),
            start_new_session=True,
            close_fds=True,
            pass_fds=passed,
            preexec_fn=lambda: limit_and_protect(kernel),
        )
    finally:
        if kernel.network is not None:
            kernel.network.spawned()
        for fd in fds:
            os.close(fd)


def give_to(path, uid):
    try:
        os.chown(path, uid, uid)
    except OSError as error:
        raise OSError("the worker is root, but there is no user %d here to run code as (%s)" % (uid, error.strerror))


def make_folders(kernel):
    """Those that the sandbox may write to, given to its user."""
    for name in ("home", "tmp", kernel.run_dir, kernel.run_dir + "/shm"):
        path = kernel.path(name)
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            continue
        if kernel.uid:
            give_to(path, kernel.uid)
