"""A process that has imported the libraries of the workflow's scripts, and forks for each call of a client.

It does not import ctxgcd: a call imports the package from its PYTHONPATH.
"""

from __future__ import annotations

import atexit
import gc
import marshal
import multiprocessing.spawn  # noqa: F401  so that a fork spawns a real Python
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
from contextlib import suppress
from importlib import import_module
from pathlib import Path

LIBRARIES = ("torch", "torch._dynamo", "torchvision", "timm", "pandas", "scipy.stats", "scipy.optimize", "filelock")
LIBRARIES += ("sklearn.cluster", "sklearn.manifold", "matplotlib.pyplot", "PIL.Image", "threadpoolctl", "jinja2")
LIBRARIES += ("pydantic", "snakemake.cli", "snakemake.report.html_reporter", "dvc.cli.parser", "dvc.repo", "networkx")

Call = tuple[list[str], str, dict[str, str]]  # arguments, folder, environment


def serve(place: Path) -> Call:
    """Serve clients until standard input ends; in a fork, return its call."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(place / "socket"))
    listener.listen(64)
    watched = selectors.DefaultSelector()
    watched.register(0, selectors.EVENT_READ)
    watched.register(listener, selectors.EVENT_READ)
    forks: dict[socket.socket, int] = {}  # a client -> the file descriptor of its fork
    print("ready", flush=True)
    while True:
        for key, _ in watched.select():
            if key.fileobj == 0:
                for fork in forks.values():
                    signal.pidfd_send_signal(fork, signal.SIGKILL)
                os._exit(0)
            elif key.fileobj is listener:
                client, _ = listener.accept()
                call, streams = received(client)
                if not (process := os.fork()):
                    gc.freeze()  # a socket in a cycle would be closed later, when its number is that of another file
                    for stream, number in zip(streams, range(3), strict=True):
                        os.dup2(stream, number)
                    os.closerange(3, 1000)
                    return call
                for stream in streams:
                    os.close(stream)
                forks[client] = os.pidfd_open(process)
                watched.register(client, selectors.EVENT_READ)
                watched.register(forks[client], selectors.EVENT_READ, (client, process))
            elif key.data:  # a fork has ended
                client, process = key.data
                code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
                with suppress(OSError):
                    client.sendall(code.to_bytes(2, "big", signed=True))
                watched.unregister(key.fileobj)
                os.close(forks.pop(client))
                with suppress(KeyError):
                    watched.unregister(client)
                client.close()
            elif key.fileobj in forks:  # a client forwards a signal, or has ended
                received_signal = key.fileobj.recv(1)
                signal.pidfd_send_signal(forks[key.fileobj], received_signal[0] if received_signal else signal.SIGKILL)
                if not received_signal:
                    watched.unregister(key.fileobj)


def received(client: socket.socket) -> tuple[Call, list[int]]:
    """Return the call of a client and its three streams."""
    size, streams, _, _ = socket.recv_fds(client, 8, 3)
    with client.makefile("rb") as file:
        return marshal.loads(file.read(int.from_bytes(size, "big"))), streams


def become(words: list[str], folder: str, environment: dict[str, str]) -> None:
    """Run these arguments as `python` would."""
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if threads := environment.get("OMP_NUM_THREADS"):
        torch.set_num_threads(int(threads))
        threadpool_limits(min(int(threads), os.cpu_count() or 1), "blas")
    sys.executable = str(Path(sys.argv[1]) / "python")
    first = folder if words[0] == "-m" else str(Path(words[0]).resolve().parent)
    sys.path[:1] = [first, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    with suppress(ImportError):
        import sitecustomize  # noqa: F401
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    for library in LIBRARIES:
        import_module(library)
    import torch
    from threadpoolctl import threadpool_limits

    sys.modules.pop("sitecustomize", None)
    gc.freeze()
    gc.set_threshold(100_000)  # collections take a tenth of the time of a short call
    call = serve(Path(sys.argv[1]))
    status: object = None
    try:
        become(*call)
    except SystemExit as end:
        status = end.code
    if status is None or isinstance(status, int):  # exit without the half second of cleaning up libraries
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit((status or 0) & 255)
    sys.exit(status)
