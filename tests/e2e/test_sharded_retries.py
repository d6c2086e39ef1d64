"""`retry` and `resume` of sharded runs: exactly the chosen failed samples get new attempts, once, in every shard."""

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.testing import Behaviour, Fault, ServerProcess, start_server_process
from tests.e2e.commands import Done, call, exported, finish, shown, start, wait_until, write_spec

ROWS = 40
SHARDS = ("--shards", "5", "--this-host")
FAULTS = [Fault("content-filter", rate=0.3, sticky=True), Fault("500", rate=0.3, sticky=True)]
MODEL = {"request_retries": 0, "max_connections": 1}
TASK = {"sample_retries": 0}


def environment(folder: Path, store: str) -> dict[str, str]:
    """Of a machine: a cache of its own, and heartbeats that expire soon."""
    return {"HOLDFAST_EXPIRY_SECONDS": "2", "HOLDFAST_CACHE": str(folder / f"cache-{store}")}


def call_in(folder: Path, *arguments: str | Path, store: str = "runs") -> Done:
    return call(*arguments, "--store", folder / store, cwd=folder, env=environment(folder, store))


def failures(folder: Path) -> dict[str, str]:
    """The kinds of the failed samples, by key."""
    lines = exported("x", folder / "runs")
    return {line["key"]: line["error"]["kind"] for line in lines if line["status"] == "failed"}


class Failed(NamedTuple):
    """A sharded run with failed samples of two kinds, and a server that answers every sample."""

    folder: Path
    kinds: dict[str, str]
    sound: ServerProcess

    @property
    def counts(self) -> Counter[str]:
        return Counter(self.kinds.values())

    @property
    def elsewhere(self) -> tuple[str, str]:
        """The server that answers: a change of place, which any worker may make."""
        return "--set", f"models.arith.base_url={self.sound.base_url}"

    def call(self, *arguments: str | Path) -> Done:
        return call_in(self.folder, *arguments)


@pytest.fixture
def failed(tmp_path: Path) -> Iterator[Failed]:
    with (
        start_server_process(Behaviour(faults=FAULTS)) as server,
        start_server_process(Behaviour(latency_seconds=0.2)) as sound,
    ):
        spec = write_spec(tmp_path, ROWS, server.base_url, model=MODEL, task=TASK)
        assert call_in(tmp_path, "run", spec, "--id", "x", *SHARDS).code == 1
        found = Failed(tmp_path, failures(tmp_path), sound)
        assert found.counts.keys() == {"server", "content_filter"}
        yield found


def test_a_choice_is_retried_in_every_shard(failed: Failed) -> None:
    folder, sound = failed.folder, failed.sound
    kept = failed.call("resume", "x", "--keep-failed", *failed.elsewhere)
    assert (kept.code, sound.stats().requests, failures(folder)) == (1, 0, failed.kinds), kept.said
    joined = failed.call("run", folder / "eval.yaml", "--id", "x", *SHARDS, *failed.elsewhere)
    assert (joined.code, sound.stats().requests) == (1, 0), "a worker that only joins retries nothing"
    finished = next(line["key"] for line in exported("x", folder / "runs") if line["status"] == "finished")
    for words, said in (
        (["--kind", "nonsense"], "kinds of failures in this run: content_filter, server"),
        (["nobody/at/all/1"], "has no key"),
        ([finished], "has not failed"),
    ):
        refused = failed.call("retry", "x", *words)
        assert (refused.code, said in refused.err, refused.err.count("\n")) == (2, True, 1), refused.said
    assert sound.stats().requests == 0
    first = next(iter(failed.kinds))
    for _ in range(2):  # again: it has an answer now
        one = failed.call("retry", "x", first)
        assert (one.code, sound.stats().requests) == (1, 1), one.said
    assert failures(folder) == {key: kind for key, kind in failed.kinds.items() if key != first}
    assert failed.call("retry", "x", "--kind", "server").code == 1
    left = {key: kind for key, kind in failed.kinds.items() if key != first and kind == "content_filter"}
    assert failures(folder) == left
    rest = failed.call("retry", "x")
    assert rest.code == 0, rest.said
    assert (sound.stats().requests, sound.stats().repeats) == (len(failed.kinds), 0)
    none = failed.call("retry", "x")
    assert (none.code, none.out) == (0, "x has no failed samples: nothing was retried.\n")
    assert failed.call("verify", "x", "--scores").code == 0


def test_a_worker_that_joins_after_a_kill_retries_the_rest_of_the_choice(failed: Failed) -> None:
    folder, sound = failed.folder, failed.sound
    assert failed.call("resume", "x", "--keep-failed", *failed.elsewhere).code == 1
    words = ("retry", "x", "--kind", "server", "--store", folder / "runs")
    with start(*words, cwd=folder, env=environment(folder, "runs")) as process:
        assert wait_until(lambda: sound.stats().requests >= 2, process)
        finish(process, signal.SIGKILL)
    assert sound.stats().requests < failed.counts["server"]
    joined = failed.call("run", folder / "eval.yaml", "--id", "x", *SHARDS, *failed.elsewhere)
    assert joined.code == 1, joined.said
    assert Counter(failures(folder).values()) == {"content_filter": failed.counts["content_filter"]}
    assert sound.stats().repeats <= 1, "only the request in flight was sent again"
    assert shown("x", folder / "runs")["status"] == "completed"
    assert failed.call("verify", "x").code == 0


@pytest.mark.parametrize("words", [("resume",), ("retry", "--kind", "server")])
def test_failed_samples_of_lost_machines_are_retried_from_the_mirror(tmp_path: Path, words: tuple[str, ...]) -> None:
    with (
        start_server_process(Behaviour(faults=FAULTS)) as server,
        start_server_process() as sound,
    ):
        mirror = {"url": (tmp_path / "mirror").as_uri(), "seconds": 0.2}
        spec = write_spec(tmp_path, ROWS, server.base_url, model=MODEL, task=TASK, mirror=mirror)
        ran = call_in(tmp_path, "run", spec, "--id", "x", "--shards", "5", store="lost")
        assert ran.code == 1, ran.said
        counts = shown("x", tmp_path / "lost")["failed"]
        (tmp_path / "lost").rename(tmp_path / "gone")
        url = (tmp_path / "mirror" / "sums" / "x").as_uri()
        kept = call_in(tmp_path, "resume", url, "--keep-failed", "--set", f"models.arith.base_url={sound.base_url}")
        assert (kept.code, sound.stats().requests) == (1, 0), kept.said
        again = call_in(tmp_path, words[0], "x", *words[1:])
        left = call_in(tmp_path, "show", url, "--json").json()
        assert (again.code, left["failed"]) == ((0, 0) if words == ("resume",) else (1, left["failed"])), again.said
        assert sound.stats().requests == counts - left["failed"] > 0
        assert (left["status"], left["finished"]) == ("completed", ROWS - left["failed"])
