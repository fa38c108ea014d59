"""Starts the host; ends it with all its kernels, whatever happens."""

import os
import signal

from host.loop import Host


def main():
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
