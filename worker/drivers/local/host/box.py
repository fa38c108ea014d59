"""A kernel's sandbox: bubblewrap's arguments, limits, environment."""

import os
import resource
import signal
import subprocess

from host.config import Config
from host.processes import PR_SET_PDEATHSIG, libc, write_file

PATH = "/usr/local/bin:/usr/bin:/bin"
ETC = (
    "alternatives ca-certificates ca-certificates.conf fonts hosts ld.so.cache ld.so.conf ld.so.conf.d localtime"
    " magic matplotlibrc mime.types nsswitch.conf protocols resolv.conf services ssl timezone"
).split()


def isolated():
    return Config.isolation == "bwrap"


def make_etc():
    """The users that a sandbox sees; in the working directory, the base."""
    os.makedirs("etc", exist_ok=True)
    write_file("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/bash\n")
    write_file("etc/group", b"root:x:0:\nuser:x:1000:\n")


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


def bwrap_arguments(kernel):
    args = ["--unshare-all", "--unshare-user", "--uid", "1000", "--gid", "1000"]
    args += ["--share-net"] if Config.network == "host" else []
    args += ["--die-with-parent", "--new-session", "--cap-drop", "ALL", "--hostname", "sandpiper", "--clearenv"]
    for name, value in environment(kernel).items():
        args += ["--setenv", name, value]
    args += ["--proc", "/proc", "--dev", "/dev", "--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = "/" + name
        if os.path.islink(path):
            args += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            args += ["--ro-bind", path, path]
    for name in ETC + [name for name in os.listdir("/etc") if name.startswith("python3")]:
        args += ["--ro-bind-try", "/etc/" + name, "/etc/" + name]
    for name in ("passwd", "group"):
        args += ["--ro-bind", os.path.join(Config.base, "etc", name), "/etc/" + name]
    for folder in python_folders():
        args += ["--ro-bind", folder, folder]
    args += ["--bind", kernel.path("tmp"), "/tmp", "--bind", kernel.path("home"), "/home/user"]
    args += ["--bind", kernel.path(kernel.run_dir), kernel.inside, "--chdir", "/home/user"]
    return args


def arguments_fd(args):
    """A file without a name that bwrap reads its arguments from, so that `ps` shows a line that people can read.
    bwrap closes it before it starts anything."""
    fd = os.memfd_create("bwrap-args")
    with open(fd, "wb", closefd=False) as f:
        f.write(b"".join(os.fsencode(arg) + b"\0" for arg in args))
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def max_processes(wanted):
    """The limit set inside a sandbox, where (since Linux 5.14) it counts the sandbox's own. Outside, and
    before, it would count all processes of the user, other sessions' too: 0, none. Root is exempt from it."""
    release = os.uname().release.split(".")
    recent = tuple(int("".join(filter(str.isdigit, part[:3])) or 0) for part in release[:2]) >= (5, 14)
    return int(wanted.get("max_processes") or 0) if isolated() and recent else 0


def limit_and_protect(wanted):
    """In the child, before exec."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    limits = [(resource.RLIMIT_CORE, 0), (resource.RLIMIT_NOFILE, 4096)]
    if wanted.get("memory_mb"):
        size = wanted["memory_mb"] << 20
        limits += [(resource.RLIMIT_DATA, size), (resource.RLIMIT_AS, 2 * size + (4 << 30))]
    if wanted.get("file_mb"):
        limits.append((resource.RLIMIT_FSIZE, wanted["file_mb"] << 20))
    for which, value in limits:
        try:
            hard = resource.getrlimit(which)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(which, (value, value))
        except (OSError, ValueError):
            pass
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(fd, b"700")
        os.close(fd)
    except OSError:
        pass
    os.umask(0o022)


def spawn(kernel, command, stderr):
    """The command in the kernel's sandbox: a child."""
    fds = []
    if isolated():
        fds.append(arguments_fd(bwrap_arguments(kernel)))
        command = ["bwrap", "--args", str(fds[0]), "--"] + command
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            cwd=kernel.path("home"),
            env={"PATH": PATH} if isolated() else environment(kernel),
            start_new_session=True,
            close_fds=True,
            pass_fds=fds,
            preexec_fn=lambda: limit_and_protect(kernel.limits),
        )
    finally:
        for fd in fds:
            os.close(fd)
