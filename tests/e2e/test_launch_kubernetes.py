"""The pods of a manifest as processes with separate folders, which share only an object store."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.testing import Behaviour, ServerProcess, start_server_process
from tests.e2e.commands import call, environment, finish, wait_until, write_spec
from tests.stores import S3

SAMPLES = 40
CONNECTIONS = 2
STORE = "/holdfast/runs"


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    with start_server_process(Behaviour(latency_seconds=0.4)) as process:
        yield process


def start_pod(documents: list[dict[str, Any]], folder: Path, env: dict[str, str]) -> "subprocess.Popen[str]":
    """What the kubelet does: mounts, then the command. Folders of the image are below the pod's own."""
    config, job = documents
    pod = job["spec"]["template"]["spec"]
    items = next(each for each in pod["volumes"] if "configMap" in each)["configMap"]["items"]
    work = folder / "work"
    work.mkdir(parents=True)
    for item in items:
        (work / item["path"]).write_text(config["data"][item["key"]])
    words = [word.replace("$$", "$").replace(STORE, str(folder / "runs")) for word in pod["containers"][0]["command"]]
    assert words[0] == "holdfast"
    own = {"HOLDFAST_CACHE": str(folder / "cache"), "XDG_STATE_HOME": str(folder / "state")}
    return subprocess.Popen(
        [sys.executable, "-m", *words],
        cwd=work,
        env=environment({**env, **own}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_submit_hands_the_manifest_to_kubectl(tmp_path: Path) -> None:
    """A program that records its arguments and its input stands for kubectl."""
    spec = write_spec(tmp_path, mirror={"url": "s3://bucket/evals"})
    words = ("launch", "kubernetes", spec, "--id", "x", "--shards", "4", "--image", "i")
    env = {"PATH": str(tmp_path / "bin")}
    (tmp_path / "bin").mkdir()
    missing = call(*words, "--submit", cwd=tmp_path, env=env)
    assert (missing.code, missing.out) == (2, "")
    assert missing.err == (
        "holdfast: --submit: kubectl is not installed here; without --submit the job file is printed\n"
    )
    client = tmp_path / "bin" / "kubectl"
    client.write_text('#!/bin/sh\necho "$@" > arguments\n/bin/cat > manifest\n')
    client.chmod(0o755)
    done = call(*words, "--submit", cwd=tmp_path, env=env)
    assert (done.code, done.said) == (0, "")
    assert (tmp_path / "arguments").read_text() == "apply -f -\n"
    assert (tmp_path / "manifest").read_text() == call(*words, cwd=tmp_path).out


@pytest.mark.parametrize(("script", "how"), [("exit 1", "exit code 1"), ("kill -9 $$", "signal 9")])
def test_a_kubectl_that_fails_is_an_error_of_the_command(tmp_path: Path, script: str, how: str) -> None:
    spec = write_spec(tmp_path, mirror={"url": "s3://bucket/evals"})
    (tmp_path / "kubectl").write_text(f"#!/bin/sh\n/bin/cat > /dev/null\n{script}\n")
    (tmp_path / "kubectl").chmod(0o755)
    words = ("launch", "kubernetes", spec, "--id", "x", "--shards", "4", "--image", "i", "--submit")
    done = call(*words, cwd=tmp_path, env={"PATH": str(tmp_path)})
    assert (done.code, done.out) == (2, "")
    said = f"holdfast: --submit: kubectl ended with {how}: the job was not submitted; its message says why\n"
    assert done.err == said


@pytest.mark.long
def test_a_pod_that_is_killed_is_replaced_and_every_key_is_answered(
    tmp_path: Path, s3: S3, server: ServerProcess
) -> None:
    bucket = s3.bucket()
    env = {**bucket.env, "HOLDFAST_EXPIRY_SECONDS": "4"}
    spec = write_spec(
        tmp_path,
        SAMPLES,
        server.base_url,
        model={"max_connections": CONNECTIONS},
        mirror={"url": bucket.url, "seconds": 1},
    )
    words = ("launch", "kubernetes", spec, "--id", "x", "--shards", "4", "--workers", "2", "--image", "any")
    printed = call(*words, cwd=tmp_path, env=env)
    assert printed.code == 0, printed.said
    documents = list(yaml.safe_load_all(printed.out))
    pods = [start_pod(documents, tmp_path / f"pod-{number}", env) for number in (1, 2)]
    assert wait_until(lambda: server.stats().requests > 10, pods[0])
    finish(pods[0], signal.SIGKILL)
    pods[0] = start_pod(documents, tmp_path / "pod-3", env)
    ends = [finish(pod) for pod in pods]
    assert [end.code for end in ends] == [0, 0], "\n".join(end.said for end in ends)
    found = call("show", f"{bucket.url}/sums/x", "--json", cwd=tmp_path, env=env)
    assert (found.code, found.json()["status"], found.json()["finished"]) == (0, "completed", SAMPLES), found.said
