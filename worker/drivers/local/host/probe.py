"""Can code be isolated on this machine? Runs a check in a sandbox like any other, and says so in one JSON line."""

import errno
import json
import os
import pkgutil
import shutil
import subprocess
import sys
import tempfile
import time

from host import box, network, seccomp
from host.cgroup import Group, Groups
from host.config import Config
from host.processes import log

SECONDS = 15
CHECK = pkgutil.get_data(__package__, "check.py").decode()


class Sandbox:
    """What box.spawn needs of a kernel."""

    def __init__(self, uid):
        self.uid = uid
        self.limits = {"memory_mb": 1024, "max_processes": 64, "file_mb": 64, "uid": uid}
        self.run_dir, self.inside, self.mark = "run", "/run/sandpiper", "probe"
        self.group = Group(Groups(), "probe", {})
        self.network = network.Network(uid) if network.wanted() else None

    def path(self, name):
        return os.path.join(Config.base, "s", name)


def run_check(sandbox):
    """None, or why not."""
    command = [Config.python, "-I", "-c", CHECK, Config.network]
    child = box.spawn(sandbox, command, subprocess.PIPE)
    deadline = time.monotonic() + SECONDS
    try:
        while child.poll() is None:
            if sandbox.network is not None and not sandbox.network.is_open:
                sandbox.network.step()
            if time.monotonic() > deadline:
                return "the check of the isolation did not end in %d s" % SECONDS
            time.sleep(0.005)
        words = child.stderr.read().decode("utf-8", "replace").strip().splitlines()
        return None if child.returncode == 0 else (words or ["exit status %d" % child.returncode])[-1][:300]
    finally:
        child.kill()
        child.wait()
        if sandbox.network is not None:
            sandbox.network.close()


def probe(uid):
    os.chdir(Config.base)
    os.chmod(Config.base, 0o711)
    os.mkdir("s", 0o711)
    box.make_etc()
    Config.seccomp = seccomp.program()
    sandbox = Sandbox(uid)
    box.make_folders(sandbox)
    return run_check(sandbox)


def main(text):
    Config.take(json.loads(text))
    parent, Config.base = Config.base, None
    try:
        Config.base = tempfile.mkdtemp(prefix="sandpiper-probe-", dir=parent)
        why = probe(json.loads(text)["uid"])
    except (OSError, subprocess.SubprocessError) as error:
        why = str(error)
        if Config.base is None or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            why = "CODE_INTERPRETER_LOCAL_DIR: %s: %s" % (parent, error.strerror)
    finally:
        os.chdir("/")
        if Config.base is not None:
            shutil.rmtree(Config.base, ignore_errors=True)
    if why is not None:
        log(why)
    print(json.dumps({"ok": why is None, "why": why or ""}))
    sys.stdout.flush()
