"""NDJSON with the worker, on stdin and stdout.

Worker -> host, one JSON object a line:
  {"op": "config", ...}                  first line; see Config
  {"op": "start", "k": id, "dir": d, "uid", "memory_mb", "max_processes", "file_mb", "disk_mb", "cpu_s"}
                                         a kernel in folder d (relative to the base): d/home is its home; uid:
                                         the user that it belongs to, 0: the worker's
  {"op": "run", "k": id, "code", "env": {}, "nonce"}
  {"op": "interrupt" | "kill", "k": id}
  {"op": "remove", "dir": d}             delete a folder
  {"op": "sweep", "dir": path}           delete the folder of a dead worker and what still runs from it
  {"op": "beat"}                         sign of life, each second
Host -> worker:
  {"ev": "hello", "limits": text}, {"ev": "ready", "k"}
  {"ev": "out", "k", "s": 1 | 2, "t": text}, {"ev": "result", "k", "main": bool, "data": bundle}
  {"ev": "warn", "k", "t": text}
  {"ev": "end", "k", "status": "ok" | "error", "name", "value", "tb", "exit": n or absent}
  {"ev": "dead", "k", "code": exit status or 128+signal, "oom": bool, "full": bool, "why": text}
  {"ev": "removed", "dir"}
"""

import collections
import json
import os
import time

import zmq

from host.config import OUT_QUEUE_MAX


def encode(event):
    text = json.dumps(event, ensure_ascii=False)
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:  # lone surrogates
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return text.encode() + b"\n"


class Wire:
    def __init__(self, poller):
        self.poller = poller
        self.queue = collections.deque()  # lines for the worker
        self.queued = 0  # bytes in it
        self.partial = []  # pieces of a line that has no end yet
        self.last_heard = time.monotonic()
        self.ended = False
        os.set_blocking(0, False)
        os.set_blocking(1, False)
        poller.register(0, zmq.POLLIN)

    def tell(self, event):
        self.tell_line(encode(event))

    def tell_line(self, line):
        if not self.queue:
            self.poller.register(1, zmq.POLLOUT)
        self.queue.append(line)
        self.queued += len(line)

    def full(self):
        return self.queued > OUT_QUEUE_MAX

    def write(self):
        while self.queue:
            line = self.queue[0]
            try:
                count = os.write(1, line[:1 << 20])
            except BlockingIOError:
                break
            except OSError:
                self.ended = True
                return
            self.queued -= count
            if count == len(line):
                self.queue.popleft()
            else:
                self.queue[0] = memoryview(line)[count:]
        if not self.queue:
            self.poller.unregister(1)

    def read(self):
        """The messages that have come."""
        chunks = []
        for _ in range(64):
            try:
                data = os.read(0, 1 << 16)
            except BlockingIOError:
                break
            if not data:
                self.ended = True
                break
            chunks.append(data)
        if not chunks:
            return []
        self.last_heard = time.monotonic()
        if not any(b"\n" in chunk for chunk in chunks):
            self.partial = self.partial + chunks
            return []
        *lines, rest = b"".join(self.partial + chunks).split(b"\n")
        self.partial = [rest]
        return [json.loads(line) for line in lines if line]
