"""Starts the host, and ends it with all its kernels, whatever happens; or, called with "probe", the probe."""

import os
import signal
import sys


def main():
    os.umask(0o022)
    if sys.argv[1:2] == ["probe"]:
        from host import probe

        probe.main(sys.argv[2])
        return
    # Not for the probe: zmq takes long.
    from host.loop import Host

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the worker's business
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    host = Host()
    try:
        while not host.wire.ended:
            host.turn()
    finally:
        host.close()
    os._exit(0)


if __name__ == "__main__":
    main()
