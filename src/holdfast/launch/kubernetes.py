"""Kubernetes: an Indexed Job. Each pod is a worker that claims free shards.

Pods share no disk, so the run needs a mirror in an object store. Spec, data and own modules become a ConfigMap. A pod
that is evicted or preempted is replaced, and does not use up the retries of its index. Exit codes that another try
would not change end the index.
"""

import base64
import os
from typing import Any

from holdfast.errors import UsageError
from holdfast.journal import split_url
from holdfast.launch.job import LaunchJob, as_file, job_name
from holdfast.launch.yaml_text import write_yaml

_FILES_BYTES_MAX = 900_000
"""A ConfigMap holds at most 1 MiB, in which binary files take a third more."""
_WORK = "/holdfast/work"
_STORE = "/holdfast/runs"
_SECRET = "holdfast-keys"
_RETRIES = 6
_FINAL_CODES = (1, 2, 3, 5, 6)
"""Failed samples, a bad spec, a refused resume, damage, a spent budget."""
_INTERRUPTED = 130


def write_kubernetes(job: LaunchJob) -> str:
    """The manifest for `kubectl apply -f -`."""
    _check(job)
    name, folder = job_name(job), job.cluster.image_folder
    files = {} if folder else _read_files(job)
    spec_name = as_file(os.path.basename(job.spec_name)) if files else job.spec_name
    words = ["holdfast", *job.run_words(spec_name, _STORE), "--shards", str(job.shards)]
    mounts: list[dict[str, Any]] = [{"name": "runs", "mountPath": _STORE}]
    volumes: list[dict[str, Any]] = [{"name": "runs", "emptyDir": {}}]
    documents: list[dict[str, Any]] = []
    labels = {"app.kubernetes.io/name": "holdfast", "app.kubernetes.io/instance": name}
    if files:
        documents.append(_config_map(name, labels, files))
        items = [{"key": f"file-{number}", "path": path} for number, path in enumerate(files)]
        mounts.append({"name": "spec", "mountPath": _WORK, "readOnly": True})
        volumes.append({"name": "spec", "configMap": {"name": name, "items": items}})
    container = {
        "name": "worker",
        "image": job.cluster.image,
        # Kubernetes expands $(NAME) here, and turns $$ into $.
        "command": [word.replace("$", "$$") for word in words],
        "env": [*_environment(job)],
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
        "volumeMounts": mounts,
        **({"workingDir": folder or _WORK} if files or folder else {}),
    }
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": job.stop_seconds,
        "containers": [container],
        "volumes": volumes,
    }
    documents.append(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "labels": labels},
            "spec": {
                "completionMode": "Indexed",
                "completions": job.workers,
                "parallelism": job.workers,
                "backoffLimitPerIndex": _RETRIES,
                "podFailurePolicy": {"rules": _failure_rules()},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        }
    )
    return write_yaml(_comments(job), *documents)


def _check(job: LaunchJob) -> None:
    mirror = job.spec.mirror
    if mirror is None or split_url(mirror.url)[0] == "file":
        raise UsageError(
            "launch kubernetes: pods share no disk, so the run needs a mirror in an object store; add to the spec, for "
            "example: mirror: {url: s3://bucket/evals}"
        )
    if not mirror.exclusive:
        raise UsageError(
            "launch kubernetes: nobody claims shards in a mirror with exclusive: false, so every pod would pay for all "
            "shards; set mirror.exclusive: true"
        )
    if not job.cluster.image:
        raise UsageError("launch kubernetes: name an image that has holdfast installed: --image REGISTRY/NAME:TAG")


def _failure_rules() -> list[dict[str, Any]]:
    return [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "Ignore", "onExitCodes": {"containerName": "worker", "operator": "In", "values": [_INTERRUPTED]}},
        {
            "action": "FailIndex",
            "onExitCodes": {"containerName": "worker", "operator": "In", "values": list(_FINAL_CODES)},
        },
    ]


def _environment(job: LaunchJob) -> list[dict[str, Any]]:
    secret = job.cluster.secret or _SECRET
    found: list[dict[str, Any]] = []
    for name, is_needed in job.variables().items():
        reference: dict[str, Any] = {"name": secret, "key": name}
        if not is_needed:
            reference["optional"] = True
        found.append({"name": name, "valueFrom": {"secretKeyRef": reference}})
    return found


def _read_files(job: LaunchJob) -> dict[str, bytes]:
    """The content of the files that the run reads, by relative path."""
    paths = job.files()
    size = sum(map(os.path.getsize, paths.values()))
    if size > _FILES_BYTES_MAX:
        raise UsageError(
            f"launch kubernetes: spec, data and code have {size:,} bytes, more than a ConfigMap can hold; copy their "
            "folder into the image and name it: --folder /path/in/the/image"
        )
    if any(task.dataset.files for task in job.spec.tasks):
        raise UsageError(
            "launch kubernetes: rows of the data name further files; copy the folder of the spec into the image and "
            "name it: --folder /path/in/the/image"
        )
    found = {}
    for name, path in paths.items():
        with open(path, "rb") as file:
            found[name] = file.read()
    return found


def _config_map(name: str, labels: dict[str, str], files: dict[str, bytes]) -> dict[str, Any]:
    texts: dict[str, str] = {}
    others: dict[str, str] = {}
    for number, content in enumerate(files.values()):
        try:
            texts[f"file-{number}"] = content.decode()
        except UnicodeDecodeError:
            others[f"file-{number}"] = base64.b64encode(content).decode()
    parts = {**({"data": texts} if texts else {}), **({"binaryData": others} if others else {})}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}, **parts}


def _comments(job: LaunchJob) -> list[str]:
    lines = [job.title]
    needed = [name for name, is_needed in job.variables().items() if is_needed]
    if needed and all(name.isidentifier() for name in needed):
        secret = job.cluster.secret or _SECRET
        literals = " ".join(f'--from-literal={name}="${name}"' for name in needed)
        lines.append(f"First, once: kubectl create secret generic {secret} {literals}")
    lines.append("Needs Kubernetes 1.29 or later (backoffLimitPerIndex).")
    return lines
