"""A simulated Kubernetes cluster of one node, which records every Job and optionally runs its pod.

It refuses invalid requests of the executor plugin as a real cluster does: a GPU without an equal limit, two volumes of
one name, and the log of a previous container of a pod that was never restarted.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import psutil
import yaml

GPU = "nvidia.com/gpu"
KILLED = 137


@dataclass
class Cluster:
    """The cluster's folder, and the received requests.

    folder: contains `kubeconfig`, and `workdir`, the node's disk at a pod's /workdir.
    programs: folders of a pod's PATH.
    runs: whether pods are run, one after another; else each is reported as failed.
    interrupt: a file pattern; the first pod to write such a file is killed, as when its node fails.
    jobs, secrets, exit_codes, logs: by name. calls: (verb, resource) of all requests.
    """

    folder: Path
    programs: str
    runs: bool = False
    interrupt: str = ""
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    secrets: dict[str, dict[str, str]] = field(default_factory=dict)
    exit_codes: dict[str, int] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)
    calls: set[tuple[str, str]] = field(default_factory=set)
    node: threading.Lock = field(default_factory=threading.Lock)

    def posted(self, rule: str, words: str = "") -> list[dict[str, Any]]:
        """Return the Jobs of a rule with `words` in their command, in order."""
        return [job for job in self.jobs.values() if f"{rule}:{words}" in container_of(job)["args"][1]]

    def accept(self, job: dict[str, Any]) -> str:
        """Accept a Job, or return why it is refused."""
        spec, container = job["spec"]["template"]["spec"], container_of(job)
        resources = container["resources"]
        names = [volume["name"] for volume in spec["volumes"]]
        if resources["requests"].get(GPU) != resources.get("limits", {}).get(GPU):
            return f"{GPU}: Invalid value: must be equal to {GPU} limit"
        if len(set(names)) < len(names):
            return "spec.template.spec.volumes: Duplicate value"
        name = job["metadata"]["name"]
        self.jobs[name] = job
        if self.runs:
            threading.Thread(target=self.run, args=(name,), daemon=True).start()
        else:
            self.exit_codes[name] = 1
        return ""

    def run(self, name: str) -> None:
        """Run a pod's command on an empty disk, with only the environment of its Job."""
        container = container_of(self.jobs[name])
        secret = {
            entry["name"]: base64.b64decode(self.secrets[ref["name"]][ref["key"]]).decode()
            for entry in container.get("env") or []
            for ref in [entry["valueFrom"]["secretKeyRef"]]
        }
        project = container["volumeMounts"][1]["mountPath"]
        image = {"PATH": self.programs, "PYTHONPATH": project, "HOME": str(self.folder)}
        with self.node:
            shutil.rmtree(self.folder / "workdir", ignore_errors=True)
            (self.folder / "workdir").mkdir()
            with open(self.folder / f"{name}.log", "w") as log:
                process = psutil.Popen(
                    [*container["command"], *container["args"]],
                    cwd=self.folder / "workdir",
                    env=image | secret,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
                while process.poll() is None:
                    time.sleep(0.02)
                    if self.interrupt and any(Path(project).glob(self.interrupt)):
                        self.interrupt = ""
                        for one in [*process.children(recursive=True), process]:
                            one.kill()
                        process.wait()
        self.logs[name] = Path(log.name).read_text()
        self.exit_codes[name] = KILLED if process.returncode < 0 else process.returncode


def container_of(job: dict[str, Any]) -> dict[str, Any]:
    """Return the only container of a Job's pod."""
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return dict(container)


def pod(name: str, ended: int | None) -> dict[str, Any]:
    """Return the status of a pod in the API."""
    state: dict[str, Any] = {"running": {}} if ended is None else {"terminated": {"exitCode": ended}}
    status = {"name": "snakemake", "state": state, "image": "", "imageID": "", "ready": True, "restartCount": 0}
    return {"metadata": {"name": name}, "status": {"containerStatuses": [status]}}


@contextmanager
def serving(cluster: Cluster) -> Iterator[Path]:
    """Serve at a port of this host; yield the KUBECONFIG to use it."""

    class Handler(BaseHTTPRequestHandler):
        def note(self, verb: str) -> list[str]:
            """Record the call; return its resource, the name, and a part of it such as its log."""
            _, _, address = urlparse(self.path).path.partition("/namespaces/")
            kind, *rest = address.split("/")[1:]
            cluster.calls.add((verb if rest or verb != "get" else "list", "/".join([kind, *rest[1:]])))
            return [kind, *rest]

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            refusal = ""
            if self.note("create") == ["jobs"]:
                refusal = cluster.accept(body)
            else:
                cluster.secrets[body["metadata"]["name"]] = body.get("data") or {}
            self.answer(422 if refusal else 201, {"message": refusal} if refusal else body)

        def do_GET(self) -> None:
            query = parse_qs(urlparse(self.path).query)
            match self.note("get"):
                case ["jobs", name, "status"]:
                    ended = cluster.exit_codes.get(name)
                    counted = {} if ended is None else {"failed" if ended else "succeeded": 1}
                    self.answer(200, cluster.jobs[name] | {"status": counted})
                case ["pods", _, "log"] if "previous" in query:
                    self.answer(400, {"message": "previous terminated container not found"})
                case ["pods", name, "log"]:
                    self.answer(200, cluster.logs.get(name, ""))
                case ["pods"]:
                    name = query["labelSelector"][0].removeprefix("job-name=")
                    self.answer(200, {"items": [pod(name, cluster.exit_codes.get(name))]})

        def do_DELETE(self) -> None:
            self.note("delete")
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.answer(200, {"status": "Success"})

        def answer(self, code: int, content: object) -> None:
            body = content.encode() if isinstance(content, str) else json.dumps(content).encode()
            self.send_response(code)
            self.send_header("Content-Type", "text/plain" if isinstance(content, str) else "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None:
            """Print nothing, so that the output of the test is that of Snakemake."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    place = {"name": "here", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
    context = {"name": "here", "context": {"cluster": "here", "user": "here"}}
    users = [{"name": "here", "user": {"token": "none"}}]
    file = cluster.folder / "kubeconfig"
    file.write_text(
        yaml.safe_dump({"clusters": [place], "contexts": [context], "users": users, "current-context": "here"})
    )
    try:
        yield file
    finally:
        server.shutdown()
        server.server_close()


def stand_ins(folder: Path) -> str:
    """Return a PATH with replacements for programs of the image: rsync, and a pip that needs no network."""
    folder.mkdir()
    copy = 'for last; do from=$to to=$last; done\ncp --recursive --preserve=timestamps --dereference "$from" "$to"\n'
    for name, script in (("rsync", copy), ("pip", "")):
        (folder / name).write_text(f"#!/bin/sh\n{script}")
        (folder / name).chmod(0o755)
    return str(folder)
