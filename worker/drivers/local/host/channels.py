"""One kernel's sockets: signed Jupyter messages, never lost, never gathered without limit.

jupyter_client's Session makes, signs, checks and reads the messages. Its clients are not used: they wait in the
call or queue what comes, and here a kernel whose output the worker does not take must itself wait (few messages
in the receiving socket, none dropped by the sending one), while one poll loop serves all kernels.
"""

import hmac
import uuid

import zmq
from jupyter_client.session import Session

from host.config import PORTS

KINDS = {"shell": zmq.DEALER, "control": zmq.DEALER, "iopub": zmq.SUB}
MESSAGE_MAX = 128 << 20


class Channels:
    def __init__(self, context, prefix, key):
        """prefix: of the sockets' paths, relative to the base, our working directory: a path may have 107 bytes."""
        # No history of digests: who could send a message twice has the key, it is the user's code.
        self.session = Session(
            session=uuid.uuid4().hex, username="user", key=key.encode(), packer="json", digest_history_size=0
        )
        self.sockets = {name: self.open(context, kind, prefix, name) for name, kind in KINDS.items()}

    def open(self, context, kind, prefix, name):
        sock = context.socket(kind)
        sock.setsockopt(zmq.LINGER, 0)
        sock.setsockopt(zmq.RECONNECT_IVL, 10)
        sock.setsockopt(zmq.RECONNECT_IVL_MAX, 50)
        sock.setsockopt(zmq.MAXMSGSIZE, MESSAGE_MAX)
        if kind == zmq.SUB:
            sock.setsockopt(zmq.RCVHWM, 8)
            sock.setsockopt(zmq.SUBSCRIBE, b"")
        sock.connect("ipc://%s-%d" % (prefix, PORTS[name]))
        return sock

    def close(self):
        for sock in self.sockets.values():
            sock.close()

    def send(self, channel, msg_type, content):
        """The message's id. zmq.Again: the kernel does not take it (Session.send would wait)."""
        message = self.session.msg(msg_type, content)
        self.sockets[channel].send_multipart(self.session.serialize(message), zmq.NOBLOCK)
        return message["header"]["msg_id"]

    def receive(self, channel):
        """(type, id of the request, packed content); zmq.Again when there is nothing, other errors for what is no
        message. Not Session.deserialize, which spends 0.3 ms on a message's dates."""
        parts = self.session.feed_identities(self.sockets[channel].recv_multipart(zmq.NOBLOCK))[1]
        if not hmac.compare_digest(parts[0], self.session.sign(parts[1:5])):
            raise ValueError("not signed with the kernel's key")
        header, parent = self.session.unpack(parts[1]), self.session.unpack(parts[2])
        return header["msg_type"], parent.get("msg_id"), parts[4]

    def unpack(self, content):
        return self.session.unpack(content)
