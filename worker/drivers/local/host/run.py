"""One execution in a kernel: what it has put out, and how it ended."""

from host.config import (
    FILES_MIME, LINE_MAX, NAME_MAX, OUT_PIECE, OUT_RUN_MAX, TAIL_MAX, TRACE_MAX, VALUE_MAX,
)
from host.processes import oom_kills
from host.wire import encode


def shorten(text, limit):
    if len(text) <= limit:
        return text
    half = limit // 2
    return "%s\n... %d characters left out ...\n%s" % (text[:half], len(text) - 2 * half, text[-half:])


class Run:
    def __init__(self, wire, kernel_id, nonce):
        self.wire, self.kernel_id, self.nonce = wire, kernel_id, nonce
        self.msg_id = None
        self.idle = self.reply = None
        self.idle_at = 0.0
        self.error = None  # content of the error message
        self.listing = None  # what the prepared kernel's hook published
        self.sent = [0, 0, 0]  # characters passed on, by stream
        self.dropped = [0, 0, 0]
        self.tail = ["", "", ""]
        self.pending = []  # [stream, [text], characters] not yet given to the worker
        self.pending_size = 0
        self.oom_before = oom_kills()

    def on_text(self, stream, text):
        room = OUT_RUN_MAX - self.sent[stream]
        if room < len(text):
            rest = text[max(room, 0):]
            text = text[:max(room, 0)]
            self.dropped[stream] += len(rest)
            self.tail[stream] = (self.tail[stream] + rest[-TAIL_MAX:])[-TAIL_MAX:]
        if not text:
            return
        self.sent[stream] += len(text)
        self.pending_size += len(text)
        last = self.pending[-1] if self.pending else None
        if last is not None and last[0] == stream and last[2] < OUT_PIECE:
            last[1].append(text)
            last[2] += len(text)
        else:
            self.pending.append([stream, [text], len(text)])
        if self.pending_size > 2 * OUT_PIECE:
            self.flush()

    def flush(self):
        """What has been gathered goes to the worker, streams in the order in which they came."""
        pending, self.pending, self.pending_size = self.pending, [], 0
        for stream, parts, _ in pending:
            text = "".join(parts)
            for start in range(0, len(text), OUT_PIECE):
                self.wire.tell({"ev": "out", "k": self.kernel_id, "s": stream, "t": text[start:start + OUT_PIECE]})

    def on_data(self, data, main):
        if FILES_MIME in data:
            if data[FILES_MIME].get("nonce") == self.nonce:
                self.listing = data[FILES_MIME]
        elif data:
            self.on_result(data, main)

    def on_result(self, data, main):
        self.flush()
        line = encode({"ev": "result", "k": self.kernel_id, "main": main, "data": data})
        if len(line) > LINE_MAX:
            self.warn("a result of %d bytes (%s) was dropped: too large" % (len(line), ", ".join(data)[:200]))
        else:
            self.wire.tell_line(line)

    def warn(self, text):
        self.wire.tell({"ev": "warn", "k": self.kernel_id, "t": text})

    def end_output(self):
        for stream, name in ((1, "stdout"), (2, "stderr")):
            lost = self.dropped[stream] - len(self.tail[stream])
            if lost > 0:
                self.warn("%s: %d characters in the middle were not kept" % (name, lost))
            if self.tail[stream]:
                self.pending.append([stream, [self.tail[stream]], len(self.tail[stream])])
                self.tail[stream] = ""
        self.flush()

    def ending(self):
        """The "end" event."""
        event = {"ev": "end", "k": self.kernel_id, "status": "ok"}
        listing = self.listing or {}
        reply = self.reply or {}
        error = self.error or (reply if reply.get("status") == "error" else None) or {}
        fallback = listing.get("error") or {}
        code = listing.get("exit")
        if isinstance(code, list) and isinstance(code[0], int):
            event["exit"] = code[0]
            if code[0] == 0:
                return event
        elif reply.get("status") == "ok" and not self.error and not fallback:
            return event
        event["status"] = "error"
        event["name"] = str(error.get("ename") or fallback.get("name") or "Error")[:NAME_MAX]
        value = error.get("evalue")
        event["value"] = shorten(str(fallback.get("value", "") if value is None else value), VALUE_MAX)
        trace = error.get("traceback")
        event["tb"] = shorten("\n".join(map(str, trace)) if isinstance(trace, list) else "", TRACE_MAX)
        return event
