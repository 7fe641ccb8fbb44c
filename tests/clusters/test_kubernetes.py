"""The two ways to run on Kubernetes: one Job for everything, and the executor plugin with a pod for each job.

The plugin and Snakemake are real; the cluster is simulated by tests/clusters/cluster.py.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.clusters.cluster import GPU, Cluster, container_of, serving, stand_ins
from tests.helpers.forked import programs
from tests.helpers.places import PROGRAMS, ROOT
from tests.helpers.workflow import Project, Result, fresh, one_job_of_each_kind, short_trainings

PROFILES = ROOT / "profiles"
RUN = "results/runs/fashion/simgcd/seed0"


@pytest.fixture
def pod() -> dict[str, Any]:
    job = yaml.safe_load((PROFILES / "kubernetes" / "job.yaml").read_text())
    assert (job["apiVersion"], job["kind"], job["spec"]["backoffLimit"]) == ("batch/v1", "Job", 3)
    spec: dict[str, Any] = job["spec"]["template"]["spec"]
    return spec


def test_it_requests_eight_gpus_and_the_volume(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    assert pod["restartPolicy"] == "Never"
    assert container["resources"] == {
        "requests": {"cpu": 32, "memory": "256Gi", "nvidia.com/gpu": 8},
        "limits": {"memory": "256Gi", "nvidia.com/gpu": 8},
    }
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounted == {"project": container["workingDir"], "shm": "/dev/shm"}
    assert mounted.keys() == {volume["name"] for volume in pod["volumes"]}
    assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "ctxgcd"}


def test_its_command_gives_imagenet_all_gpus(pod: dict[str, Any], tmp_path: Path) -> None:
    """A dry run of the Job's command, with two trainings as targets."""
    project = fresh(tmp_path / "project", tmp_path / "nothing")
    (command,) = pod["containers"][0]["args"]
    runs = [f"results/runs/{name}/simgcd/seed5/run.json" for name in ("imagenet_1k", "cub")]
    unlock, run = command.replace("exec snakemake", "exec snakemake -n -p").split("&&")
    words = f"{unlock} && {run.replace('all_tables', ' '.join(runs))}"
    done = subprocess.run(
        [*pod["containers"][0]["command"], f"export PATH={shlex.quote(str(programs()))}:$PATH && {words}"],
        cwd=project.folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, done.stdout
    devices = dict(re.findall(r'"benchmark": "(\w+)".*? --devices (\d)', done.stdout))
    assert devices == {"imagenet_1k": "8", "cub": "1"}


# Added to the sitecustomize of a project: the client reads KUBECONFIG when it is imported, before a process is forked.
READ_AGAIN = """
import os
if "KUBECONFIG" in os.environ:
    from kubernetes.config import kube_config
    kube_config.KUBE_CONFIG_DEFAULT_LOCATION = os.environ["KUBECONFIG"]
"""


def call(project: Project, cluster: Cluster, *words: str) -> Result:
    """Call Snakemake with the profile; the project's folder replaces /project and the node's /workdir."""
    profile = project.folder / "profiles" / "mine" / "config.yaml"
    profile.parent.mkdir(exist_ok=True)
    text = (PROFILES / "kubernetes" / "config.yaml").read_text()
    text = text.replace("\n# site: ", "\n").replace("NAMESPACE", "birds")
    text = text.replace("/project", str(project.folder)).replace("/workdir", str(cluster.folder / "workdir"))
    profile.write_text(text)
    with (project.folder / "sitecustomize.py").open("a") as file:
        file.write(READ_AGAIN)
    often = ("--seconds-between-status-checks", "1", "--latency-wait", "5")
    with serving(cluster) as kubeconfig, pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(kubeconfig))
        patch.setenv("PATH", cluster.programs)
        return project.call("--workflow-profile", "profiles/mine", *words, *often)


def cluster_in(folder: Path, programs: Path = PROGRAMS, **settings: Any) -> Cluster:
    pytest.importorskip("snakemake_executor_plugin_kubernetes")
    pytest.importorskip("snakemake_storage_plugin_fs")
    (folder / "node").mkdir()
    path = os.pathsep.join([stand_ins(folder / "programs"), str(programs), os.defpath])
    return Cluster(folder / "node", path, **settings)


@pytest.fixture(scope="module")
def submitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, Cluster, Result]:
    """Jobs of each kind, submitted to a cluster whose pods all fail."""
    folder = tmp_path_factory.mktemp("kubernetes")
    project, cluster = fresh(folder / "project", folder / "nothing"), cluster_in(folder)
    wanted = one_job_of_each_kind(project, project.folder / "pods")
    # One more attempt, not three: each takes a second.
    return project, cluster, call(project, cluster, "--keep-going", *wanted, "--preemptible-retries", "1")


def test_a_training_requests_one_gpu(submitted: tuple[Project, Cluster, Result]) -> None:
    """The complete Job except its command."""
    project, cluster, result = submitted
    assert cluster.jobs, result.output
    job = cluster.posted("train", "benchmark=cub")[0]
    assert job["spec"]["backoffLimit"] == 0  # Snakemake submits it again
    spec = job["spec"]["template"]["spec"]
    (container,) = spec.pop("containers")
    assert spec == {
        "restartPolicy": "Never",
        "nodeSelector": {},
        "tolerations": [{"key": GPU, "operator": "Equal", "value": "present", "effect": "NoSchedule"}],
        "volumes": [
            {"name": "workdir", "emptyDir": {}},
            {"name": "ctxgcd", "persistentVolumeClaim": {"claimName": "ctxgcd"}},
        ],
    }
    spec["containers"] = [container]
    assert {key: container[key] for key in container if key not in ("args", "env")} == {
        "name": "snakemake",
        "image": "registry.example.org/ctxgcd:latest",
        "command": ["/bin/sh"],
        "workingDir": "/workdir",
        "resources": {
            "requests": {"cpu": "3800m", "memory": "32000M", "ephemeral-storage": "10000M", GPU: "1"},
            "limits": {"cpu": "4000m", "memory": "32000M", "ephemeral-storage": "10000M", GPU: "1"},
        },
        "volumeMounts": [
            {"name": "workdir", "mountPath": "/workdir"},
            {"name": "ctxgcd", "mountPath": str(project.folder)},
        ],
    }


def test_a_training_of_eight_processes_is_one_container(submitted: tuple[Project, Cluster, Result]) -> None:
    """One container with eight GPUs, whose command starts the processes."""
    project, cluster, _ = submitted
    container = container_of(cluster.posted("train", "benchmark=imagenet_1k")[0])
    assert container["resources"]["limits"] == {
        **{"cpu": "32000m", "memory": "128000M", "ephemeral-storage": "10000M", GPU: "8"}
    }
    _, command = container["args"]
    assert command.count(" --target-jobs 'train:benchmark=imagenet_1k,row=simgcd,seed=0' ") == 1
    assert f" --directory {project.folder} " in command


def test_jobs_without_gpu_request_none(submitted: tuple[Project, Cluster, Result]) -> None:
    _, cluster, _ = submitted
    (score,) = cluster.posted("score", "benchmark=aircraft")
    (store,) = cluster.posted("image_store", "benchmark=scars")
    assert "tolerations" not in score["spec"]["template"]["spec"]
    assert container_of(score)["resources"]["limits"] == {
        **{"cpu": "1000m", "memory": "8000M", "ephemeral-storage": "10000M"}
    }
    assert container_of(store)["resources"]["limits"] == {
        **{"cpu": "4000m", "memory": "32000M", "ephemeral-storage": "20000M"}
    }


def test_only_trainings_are_submitted_again(submitted: tuple[Project, Cluster, Result]) -> None:
    _, cluster, result = submitted
    assert result.code != 0
    assert len(cluster.posted("train", "benchmark=cub")) == 2
    assert len(cluster.posted("score", "benchmark=aircraft")) == 1


def test_time_limits_are_those_of_slurm(submitted: tuple[Project, Cluster, Result]) -> None:
    """The command of a training contains its limit, because the plugin sets none in the Job."""
    _, cluster, result = submitted
    profiles = [yaml.safe_load((PROFILES / name / "config.yaml").read_text()) for name in ("kubernetes", "slurm")]
    of_train = [profile["set-resources"]["train"] for profile in profiles]
    for key in ("runtime", "gpu", "mem_mb"):
        assert of_train[0][key] == of_train[1][key]
    together = [profile["set-resources"]["train_together"] for profile in profiles]
    assert [(one["runtime"], one["mem_mb"]) for one in together] == [(1440, of_train[0]["mem_mb"])] * 2
    assert [one["gpu"] for one in together] == [of_train[0]["gpu"].replace(" and wildcards.row != 'kmeans'", "")] * 2
    host = yaml.safe_load((PROFILES / "gpus8" / "config.yaml").read_text())["set-resources"]
    assert [host[rule]["gpu"] for rule in ("train", "train_together")] == [of_train[0]["gpu"], together[0]["gpu"]]
    assert all(profile["preemptible-rules"] == ["train", "train_together"] for profile in profiles)
    assert [profile["preemptible-retries"] for profile in profiles] == [3, 3]
    limits = re.findall(r'train_run.py .*?"benchmark": "(\w+)".*? --minutes (\d+)', result.output)
    assert dict(limits) == {"cub": "240", "imagenet_1k": "1440"}
    assert not any("activeDeadlineSeconds" in job["spec"] for job in cluster.jobs.values())


def test_the_role_of_the_head_pod_permits_the_calls_of_the_plugin(submitted: tuple[Project, Cluster, Result]) -> None:
    """The permissions in head.yaml are those of the recorded requests."""
    _, role, binding, head = yaml.safe_load_all((PROFILES / "kubernetes" / "head.yaml").read_text())
    rights = {(verb, resource) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]}
    calls = submitted[1].calls
    assert calls <= rights
    assert rights - calls <= {("delete", "pods")}  # only at Ctrl-C, for remaining pods
    spec = head["spec"]["template"]["spec"]
    assert binding["subjects"][0]["name"] == spec["serviceAccountName"]
    (container,) = spec["containers"]
    profile = yaml.safe_load((PROFILES / "kubernetes" / "config.yaml").read_text())
    volume = f"{spec['volumes'][0]['persistentVolumeClaim']['claimName']}:{container['volumeMounts'][0]['mountPath']}"
    assert profile["kubernetes-persistent-volumes"] == [volume]
    assert container["workingDir"] == profile["directory"]


def with_packed_images(folder: Path, target: str, *until: str) -> Project:
    """A project whose next call for `target` makes no image store, because the cluster's volume has one."""
    project = fresh(folder / "project", folder / "nothing")
    project.change(short_trainings)
    before = project.call("--cores", "2", target, "--until", "image_store", *until)
    assert before.code == 0, before.output
    for name in ("results", "work"):
        shutil.move(project.folder / name, project.folder / "pods" / name)
    return project


def test_packed_images_are_not_copied_into_the_pod(tmp_path: Path) -> None:
    duplicates = "results/duplicates_fashion.csv"
    cluster, project = cluster_in(tmp_path, programs(), runs=True), with_packed_images(tmp_path, duplicates)
    result = call(project, cluster, duplicates)
    assert (list(cluster.exit_codes.values()), result.code) == ([0], 0), result.output
    assert (project.folder / "pods" / duplicates).is_file()
    assert_packed_images_are_linked(project, cluster)


def assert_packed_images_are_linked(project: Project, cluster: Cluster) -> None:
    linked = re.findall(r"Creating symlink for on-demand retrieval of (\S+)\.$", "".join(cluster.logs.values()), re.M)
    stores = project.folder / "pods" / "work" / "stores"
    assert {str(file) for file in stores.iterdir() if file.suffix in (".npz", ".pixels")} <= set(linked)


@pytest.mark.soak
def test_a_training_resumes_after_its_pod_was_killed(tmp_path: Path) -> None:
    """A real training whose first pod is killed after an epoch. Then its command, with a very short time limit."""
    cluster = cluster_in(tmp_path, runs=True, interrupt="work/runs/*/last.pt")
    project = with_packed_images(tmp_path, f"{RUN}/run.json", "weights")
    result = call(project, cluster, f"{RUN}/run.json")
    first, second = cluster.posted("train", "benchmark=fashion")
    ends = [cluster.exit_codes[job["metadata"]["name"]] for job in (first, second)]
    assert (ends, result.code) == ([137, 0], 0), result.output
    log = (project.folder / "pods/work/logs/train/fashion/simgcd/seed0.log").read_text()
    assert re.search(r"resumed after epoch [123]$", log, re.MULTILINE), log
    history = (project.folder / "pods" / RUN / "history.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in history[1:]] == ["0", "1", "2", "3"]
    assert_packed_images_are_linked(project, cluster)

    (command,) = re.findall(r"python workflow/scripts/train_run.py .* --minutes 240 .*(?= 2>&1)", result.output)
    changes = {"--minutes 240 ": "--minutes 0.0001 ", '"seed": 0': '"seed": 7', ".snakemake/storage/fs/": "/"}
    for was, now in changes.items():
        command = command.replace(was, now)
    environment = os.environ | {"PYTHONPATH": str(project.folder), "PATH": f"{PROGRAMS}{os.pathsep}{os.defpath}"}
    done = subprocess.run(
        ["bash", "-c", command], cwd=project.folder, env=environment, text=True, capture_output=True, timeout=120
    )
    assert done.returncode == 130, done.stderr
    assert done.stderr.startswith("the time limit of 0.0001 minutes is reached\ninterrupted; finished work is kept")
