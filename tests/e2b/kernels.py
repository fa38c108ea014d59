"""IPython kernels in a box: start, execute, interrupt, and the formatters of E2B's template."""

import asyncio
import json
import os

import zmq
import zmq.asyncio
from jupyter_client.session import Session

import boxes

PORTS = {"shell": 1, "iopub": 2, "stdin": 3, "control": 4, "hb": 5}
START_SECONDS = 60

# Publishing waits for a slow reader: the emulator must not lose what the kernel said.
LAUNCH = r"""
import os, sys, zmq
os.setpgid(0, 0)
sys.argv[0] = "ipykernel"
from ipykernel.kernelapp import IPKernelApp
class App(IPKernelApp):
    def init_iopub(self, context):
        context.sockopts.update({zmq.XPUB_NODROP: 1, zmq.SNDHWM: 64})
        super().init_iopub(context)
        context.sockopts.clear()
if sys.path and sys.path[0] == "":
    del sys.path[0]
sys.path.insert(0, "")
App.launch_instance()
"""

# The template's kernels add the columns of a DataFrame ("data") and the points of a chart ("chart").
FORMATTERS = r"""
def _e2b_setup():
    from IPython import get_ipython
    from IPython.core.formatters import BaseFormatter
    from traitlets import ObjectName, Unicode

    class Data(BaseFormatter):
        format_type = Unicode("e2b/data")
        print_method = ObjectName("_repr_e2b_data_")
        _return_type = (dict, str)

    class Chart(BaseFormatter):
        format_type = Unicode("e2b/chart")
        print_method = ObjectName("_repr_e2b_chart_")
        _return_type = (dict, str)

        def __call__(self, figure):  # matplotlib_inline takes registered printers of figures away
            if type(figure).__name__ == "Figure" and type(figure).__module__ == "matplotlib.figure":
                return chart(figure)
            return None

    def columns(frame):
        out = {}
        for name, values in frame.to_dict(orient="list").items():
            out[str(name)] = [v.isoformat() if hasattr(v, "isoformat") else v for v in values]
        return out

    def chart(figure):
        axes = figure.axes
        if not axes:
            return None
        ax = axes[0]
        out = {"title": ax.get_title(), "x_label": ax.get_xlabel(), "y_label": ax.get_ylabel(), "elements": []}
        bars = [c for c in ax.containers if type(c).__name__ == "BarContainer"]
        if bars:
            out["type"] = "bar"
            labels = [t.get_text() for t in ax.get_xticklabels()]
            for group in bars:
                for i, bar in enumerate(group):
                    label = labels[i] if i < len(labels) else str(i)
                    value = float(bar.get_height())
                    out["elements"].append({"label": label, "group": group.get_label(), "value": value})
        elif ax.lines:
            out["type"] = "line"
            for line in ax.lines:
                points = [[float(x), float(y)] for x, y in zip(line.get_xdata(), line.get_ydata())]
                out["elements"].append({"label": line.get_label(), "points": points})
        else:
            out["type"] = "unknown"
        return out

    formatters = get_ipython().display_formatter.formatters
    formatters["e2b/data"] = Data(parent=get_ipython().display_formatter)
    formatters["e2b/chart"] = Chart(parent=get_ipython().display_formatter)
    formatters["e2b/data"].for_type_by_name("pandas.core.frame", "DataFrame", columns)

_e2b_setup()
del _e2b_setup
"""


class KernelDied(Exception):
    pass


class Run:
    """One execution. `messages` gives (msg_type, content, date), then None at its end."""

    def __init__(self, msg_id):
        self.msg_id = msg_id
        self.messages = asyncio.Queue(256)
        self.idle = self.reply = False
        self.died = False

    def end_when_complete(self):
        if self.idle and self.reply:
            put(self.messages, None)


def put(queue, item):
    """Never waits: one item more than the bound is harmless."""
    queue._maxsize, bound = 0, queue._maxsize
    queue.put_nowait(item)
    queue._maxsize = bound


class Kernel:
    context = None
    count = 0

    def __init__(self, box, cwd="/home/user"):
        Kernel.count += 1
        self.box, self.cwd = box, cwd
        self.name = "k%d" % Kernel.count
        self.session = Session(key=b"")
        self.runs = {}
        self.sockets = {}
        self.tasks = []
        self.child = None
        self.dead = asyncio.Event()
        self.ready = asyncio.ensure_future(self.start())
        self.ready.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def start(self):
        if Kernel.context is None:
            Kernel.context = zmq.asyncio.Context()
            Kernel.context.set(zmq.MAX_SOCKETS, 65000)
        self.box.make()
        cwd = self.cwd
        if not os.path.isdir(self.box.host(cwd)[0]):
            cwd = "/home/user"
        prefix = "/run/emulator/" + self.name
        connection = {"transport": "ipc", "ip": prefix, "key": "", "signature_scheme": "hmac-sha256"}
        connection.update({name + "_port": port for name, port in PORTS.items()})
        with open(os.path.join(self.box.run, self.name + ".json"), "w", encoding="ascii") as f:
            json.dump(connection, f)
        env = {
            "MPLBACKEND": "module://matplotlib_inline.backend_inline",
            "MPLCONFIGDIR": "/opt/shared/matplotlib",
            "PYTHONUNBUFFERED": "1",
            "IPYTHONDIR": "/run/emulator/ipython",
        }
        argv = ["/usr/bin/python3", "-Xfrozen_modules=off", "-c", LAUNCH, "-f", prefix + ".json"]
        argv += ["--HistoryManager.hist_file=/run/emulator/%s.sqlite" % self.name]
        log = open(os.path.join(self.box.run, self.name + ".stderr"), "wb")
        null = asyncio.subprocess.DEVNULL
        try:
            self.child = await self.box.spawn(argv, cwd, env, stdin=null, stdout=null, stderr=log)
        finally:
            log.close()
        self.tasks.append(asyncio.ensure_future(self.watch()))
        for name, kind in (("shell", zmq.DEALER), ("control", zmq.DEALER), ("iopub", zmq.SUB)):
            sock = Kernel.context.socket(kind)
            sock.linger = 0
            sock.setsockopt(zmq.RECONNECT_IVL, 10)
            sock.setsockopt(zmq.RECONNECT_IVL_MAX, 50)
            if kind == zmq.SUB:
                sock.setsockopt(zmq.RCVHWM, 16)
                sock.setsockopt(zmq.SUBSCRIBE, b"")
            sock.connect("ipc://%s-%d" % (os.path.join(self.box.run, self.name), PORTS[name]))
            self.sockets[name] = sock
        await asyncio.wait_for(self.hear(), START_SECONDS)
        self.tasks.append(asyncio.ensure_future(self.listen("iopub")))
        self.tasks.append(asyncio.ensure_future(self.listen("shell")))
        run = self.send(FORMATTERS, silent=True)
        while await run.messages.get() is not None:
            pass
        self.forget(run)

    async def hear(self):
        """A subscription has no answer: ask until something comes back on iopub."""
        while True:
            if self.dead.is_set():
                raise KernelDied("the kernel did not start: %s" % self.last_words())
            await self.post("shell", "kernel_info_request", {})
            if await self.sockets["iopub"].poll(50):
                return

    def last_words(self):
        try:
            with open(os.path.join(self.box.run, self.name + ".stderr"), encoding="utf-8", errors="replace") as f:
                return f.read()[-2000:]
        except OSError:
            return ""

    async def watch(self):
        await self.child.wait()
        self.dead.set()
        for run in list(self.runs.values()):
            run.died = True
            put(run.messages, None)

    async def post(self, channel, msg_type, content):
        message = self.session.msg(msg_type, content)
        parts = self.session.serialize(message)
        await self.sockets[channel].send_multipart(parts)
        return message["header"]["msg_id"]

    def send(self, code, silent=False, stop_on_error=False):
        content = {
            "code": code, "silent": silent, "store_history": not silent, "user_expressions": {},
            "allow_stdin": False, "stop_on_error": stop_on_error,
        }
        message = self.session.msg("execute_request", content)
        run = Run(message["header"]["msg_id"])
        self.runs[run.msg_id] = run
        if self.dead.is_set():
            run.died = True
            put(run.messages, None)
        else:
            self.sockets["shell"].send_multipart(self.session.serialize(message))
        return run

    def forget(self, run):
        self.runs.pop(run.msg_id, None)
        while not run.messages.empty():  # lets a listener go on that waits for room
            run.messages.get_nowait()

    async def listen(self, name):
        sock = self.sockets[name]
        while True:
            parts = await sock.recv_multipart()
            try:
                at = parts.index(b"<IDS|MSG>")
                header, parent, content = (json.loads(parts[at + i].decode("utf-8", "replace")) for i in (2, 3, 5))
            except (ValueError, IndexError):
                continue
            run = self.runs.get(parent.get("msg_id"))
            if run is not None:
                await self.hand_over(name, run, header, content)

    async def hand_over(self, name, run, header, content):
        kind = header["msg_type"]
        if name == "shell":
            if kind == "execute_reply":
                run.reply = True
                if content.get("status") in ("aborted", "abort"):
                    put(run.messages, ("aborted", content, header.get("date")))
                    run.idle = True
                run.end_when_complete()
        elif kind == "status":
            if content.get("execution_state") == "idle":
                run.idle = True
                run.end_when_complete()
        elif run.msg_id in self.runs:
            await run.messages.put((kind, content, header.get("date")))

    async def interrupt(self):
        if not self.dead.is_set() and "control" in self.sockets:
            await self.post("control", "interrupt_request", {})

    async def kill(self):
        self.ready.cancel()
        if self.child is not None and self.child.returncode is None:
            boxes.kill_child(self.child)
            await self.child.wait()
        self.dead.set()
        for run in list(self.runs.values()):
            run.died = True
            put(run.messages, None)
        self.close()

    def close(self):
        for task in self.tasks:
            task.cancel()
        for sock in self.sockets.values():
            sock.close(0)
        self.sockets = {}
