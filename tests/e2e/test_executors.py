"""`run --executor`: refusals before anything is started, and workers that stop with the process that watches them."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import patch

import pytest

from holdfast.testing import Behaviour, start_server_process
from tests.e2e.commands import call, environment, shown, write_spec

RAY = ("--executor", "ray")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--workers", "2"), "--workers goes with --executor ray"),
        (("--address", "auto"), "--address goes with --executor ray"),
        (("--executor", "dask", "--shards", "4"), "there is only ray"),
        (RAY, "--executor needs --shards N"),
        ((*RAY, "--shards", "4", "--address", "ray://host:10001"), "Ray Client is not supported"),
        ((*RAY, "--shards", "4", "--address", "10.0.0.1:6379"), "add --this-host"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    pytest.importorskip("ray")
    done = call("run", write_spec(tmp_path), "--id", "x", *options, cwd=tmp_path)
    assert done.code == 2
    assert message in done.err


def test_a_missing_package_is_named_in_one_sentence(tmp_path: Path) -> None:
    with patch.dict(sys.modules, {"ray": None}):
        done = call("run", write_spec(tmp_path), "--id", "x", "--shards", "4", *RAY, cwd=tmp_path)
    assert done.code == 2
    assert done.err == "holdfast: --executor ray needs one more package: pip install 'holdfast[ray]'\n"
    assert not (tmp_path / "runs").exists()


def test_a_spec_that_differs_is_refused_before_workers_are_placed(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    spec = write_spec(tmp_path)
    options = ("--id", "x", "--shards", "2", "--this-host")
    assert call("run", spec, *options, cwd=tmp_path).code == 0
    done = call("run", spec, *options, *RAY, "--set", "seed=7", cwd=tmp_path)
    assert done.code == 3
    assert "seed" in done.err
    again = call("run", spec, *options, *RAY, cwd=tmp_path)
    assert again.code == 0
    assert "x is complete: no request was sent" in again.err


def test_a_worker_reports_its_progress_and_stops_in_good_order_with_its_supervisor(tmp_path: Path) -> None:
    with start_server_process(Behaviour(latency_seconds=0.3)) as server:
        spec = write_spec(tmp_path, 200, server.base_url, model={"max_connections": 2})
        options = ("--id", "x", "--store", str(tmp_path / "runs"), "--shards", "2", "--this-host")
        child = Path(__file__).with_name("child_supervisor.py")
        command = [sys.executable, str(child), "run", str(spec), *options]
        with subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                pid, done, code, *_ = line.split()
                assert code == "None", line
                if int(done) > 2:
                    break
            process.send_signal(signal.SIGKILL)
        end = time.monotonic() + 60
        while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
            assert time.monotonic() < end
            time.sleep(0.05)
        summary = shown("x", tmp_path / "runs")
        assert summary["finished"] == server.stats().answered  # requests in flight were waited for
        assert summary["unfinished"]
        assert server.stats().repeats == 0
