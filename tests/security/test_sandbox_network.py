"""`sandbox.network: true` without a container would share this machine's network: it is refused, also for a resume, and
the message says what to do.
"""

from pathlib import Path
from typing import Any

import pytest

from holdfast.sandbox.box import sandbox_doubts, why_refused
from holdfast.sandbox.confinement import HOST_NETWORK, PLAIN, why_no_namespaces
from holdfast.spec import Sandbox
from tests.e2e.agents import serving
from tests.e2e.commands import Done, exported, run
from tests.e2e.test_sandbox import commands, write

pytestmark = pytest.mark.skipif(bool(why_no_namespaces()), reason=why_no_namespaces())
REASON = "sandbox.network: true needs a container (sandbox.image)"


def go(folder: Path, accept: bool) -> Done:
    environment = {PLAIN: "", HOST_NETWORK: "1" if accept else ""}
    return run("run", folder / "eval.yaml", "--id", "r", "--store", folder / "runs", cwd=folder, env=environment)


def test_a_run_and_its_resume_are_refused_with_the_reason_until_it_is_accepted(tmp_path: Path) -> None:
    with serving(commands("echo hello")) as server:
        task: dict[str, Any] = {"sandbox": {"network": True}}
        write(tmp_path, server.base_url, {"react": {"tools": ["bash"]}}, **task)
        for _ in ("the run", "its resume"):
            done = go(tmp_path, accept=False)
            assert (done.code, REASON in done.err, f"{HOST_NETWORK}=1" in done.err) == (2, True, True)
            assert "Traceback" not in done.err
        assert server.stats().requests == 0
        accepted = go(tmp_path, accept=True)
    assert accepted.code == 0, accepted.err
    assert "can reach services that listen on 127.0.0.1" in accepted.err
    assert [line["output"] for line in exported("r", tmp_path / "runs")] == ["done after 1"]


def test_check_says_it_and_containers_are_not_concerned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HOST_NETWORK, raising=False)
    own, container = Sandbox(network=True), Sandbox(network=True, image="python:3.11")
    assert sandbox_doubts([own]) == [why_refused([own])]
    assert REASON in why_refused([own])
    assert why_refused([container]) == ""
    assert sandbox_doubts([container]) == []
    assert sandbox_doubts([Sandbox()]) == []


def test_a_kernel_without_a_filter_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.sandbox.box.call_filter", lambda namespaces: b"")
    (doubt,) = sandbox_doubts([Sandbox()])
    assert "seccomp" in doubt
