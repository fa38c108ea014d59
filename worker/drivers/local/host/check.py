"""Runs in a sandbox, before the first code of anyone: is what is promised really so?"""

import ctypes
import importlib.util
import os
import socket
import sys


def expect(true, what):
    if not true:
        sys.exit("the sandbox does not isolate: " + what)


def status():
    with open("/proc/self/status") as f:
        return dict(line.rstrip("\n").split(":\t", 1) for line in f if ":\t" in line)


def refused(path):
    try:
        open(path, "w").close()
    except OSError:
        return True
    return False


def main():
    seen = status()
    interfaces = {name for _, name in socket.if_nameindex()}
    network = {"none": {"lo"}, "internet": {"lo", "tap0"}}.get(sys.argv[1], interfaces)
    expect(os.getuid() == 1000 and os.geteuid() == 1000, "the user is %d" % os.geteuid())
    expect(all(int(seen["Cap" + name], 16) == 0 for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")), "capabilities")
    expect(seen["NoNewPrivs"].strip() == "1", "new privileges can be had")
    expect(seen["Seccomp"].strip() == "2", "no seccomp filter")
    expect(ctypes.CDLL(None).unshare(0x10000000) == -1, "new user namespaces can be made")
    expect(max(int(name) for name in os.listdir("/proc") if name.isdigit()) < 100, "processes of the machine")
    expect(all(refused(path) for path in ("/x", "/usr/x", "/dev/x", "/etc/x", "/proc/sys/kernel/core_pattern")),
           "the system can be written to")
    expect(interfaces == network, "network interfaces %s" % ", ".join(sorted(interfaces)))
    for name in ("ipykernel", "zmq"):
        if importlib.util.find_spec(name) is None:
            sys.exit("%s has no package %s" % (sys.executable, name))


main()
