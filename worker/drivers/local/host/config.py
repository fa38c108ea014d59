"""What the worker said in its first line, and limits that are the same for all."""

FILES_MIME = "application/vnd.sandpiper.files+json"
OUT_PIECE = 128 << 10  # characters of one output line to the worker
OUT_QUEUE_MAX = 4 << 20  # bytes waiting for the worker; above it no kernel is read
OUT_RUN_MAX = 32 << 20  # characters of one stream of one run that are passed on; then only the tail is
TAIL_MAX = 64 << 10  # characters kept of what is beyond
LINE_MAX = 28 << 20  # bytes of one result
NAME_MAX, VALUE_MAX, TRACE_MAX = 256, 64 << 10, 128 << 10
START_SECONDS = 40
DU_SECONDS = 10  # counting a session's files
REPLY_GRACE = 0.5  # idle came but no reply: it could not be sent
PORTS = {"shell": 1, "iopub": 2, "stdin": 3, "control": 4, "hb": 5}  # endings of the sockets' names


class Config:
    base = ""  # absolute; the host's working directory
    token = ""  # marks the processes of this worker's kernels
    python = "/usr/bin/python3"
    isolation = "bwrap"
    network = "none"
    silence_s = 12.0  # without a beat for so long, running code is killed
    prepare = ""
    seccomp = b""  # the program of seccomp.py

    @classmethod
    def take(cls, message):
        for name in ("base", "token", "python", "isolation", "network", "silence_s", "prepare"):
            if name in message:
                setattr(cls, name, message[name])
