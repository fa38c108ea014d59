"""Kernels driven by jupyter_client directly, nothing between: times in ms, as JSON. kernels.py FRESH WARM CODE"""

import json
import sys
import time

from jupyter_client.manager import start_new_kernel


def timed(act):
    begun = time.perf_counter()
    result = act()
    return (time.perf_counter() - begun) * 1000, result


def run(client, code):
    client.execute_interactive(code, output_hook=lambda message: None, timeout=60)


def fresh(code):
    manager, client = start_new_kernel(startup_timeout=60)
    run(client, code)
    return manager, client


def stop(manager, client):
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def main():
    count, warm, code = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    times = []
    for i in range(count):
        ms, kernel = timed(lambda: fresh(code))
        times.append(ms)
        if i < count - 1:
            stop(*kernel)
    for _ in range(5):
        run(kernel[1], code)
    warm_times = [timed(lambda: run(kernel[1], code))[0] for _ in range(warm)]
    stop(*kernel)
    print(json.dumps({"fresh": times, "warm": warm_times}))


main()
