"""The host of the LOCAL driver's kernels: one process a worker, NDJSON on stdin and stdout, Jupyter on ipc sockets.

It needs no file of the repository at run time: worker/embed.py packs this folder into an archive that the worker
carries and gives to Python. Of Python packages it needs pyzmq and jupyter_client, the kernels ipykernel. It dies
with the worker (end of stdin), and every kernel dies with it.
"""
