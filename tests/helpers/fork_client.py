"""`python`, `snakemake` or `dvc` as a fork of fork_server.py: its arguments, folder, environment and streams.

It forwards SIGINT and SIGTERM and exits with the fork's status. The server kills the fork if this process is killed.
"""

import marshal
import os
import signal
import socket
import sys

place, name = os.path.split(__file__)
words = sys.argv[1:]
if name != "python":
    words.insert(0, os.path.join(os.path.dirname(sys.executable), name))
elif not words or (words[0].startswith("-") and words[0] != "-m"):
    os.execv(sys.executable, [sys.executable, *words])  # such as `python -c`

server = socket.socket(socket.AF_UNIX)
server.connect(os.path.join(place, "socket"))
call = marshal.dumps((words, os.getcwd(), dict(os.environ)))
socket.send_fds(server, [len(call).to_bytes(8, "big")], [0, 1, 2])
server.sendall(call)
for number in (signal.SIGINT, signal.SIGTERM):
    if signal.getsignal(number) is not signal.SIG_IGN:
        signal.signal(number, lambda number, frame: server.sendall(bytes([number])))
status = int.from_bytes(server.recv(2) or b"\0\1", "big", signed=True)
if status < 0:
    if status != -signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
os._exit(status)
