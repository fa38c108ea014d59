"""Runs inside the sandbox: launch.py <most processes, 0: no limit> <arguments of ipykernel>."""

import os
import resource
import sys

import zmq
from ipykernel.kernelapp import IPKernelApp


class App(IPKernelApp):
    """Publishing must wait for a slow reader, never drop."""

    def init_iopub(self, context):
        context.sockopts.update({zmq.XPUB_NODROP: 1, zmq.SNDHWM: 32})
        super().init_iopub(context)
        context.sockopts.clear()


def main():
    try:
        os.setpgid(0, 0)
    except OSError:
        pass
    limit = int(sys.argv.pop(1))
    if limit:
        resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
    sys.argv[0] = "ipykernel"
    sys.path[0] = ""  # was this file's folder
    App.launch_instance()


main()
