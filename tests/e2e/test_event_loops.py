"""A run works on uvloop if it is installed, and on asyncio's own event loop otherwise."""

import signal
from pathlib import Path

import pytest

from holdfast.testing import Behaviour, start_server_process
from tests.e2e.commands import exported, finish, shown, start, wait_until, write_spec

ROWS = 40
AT_ONCE = 4

_LOOPS = '''\
import asyncio


async def ask(sample, ctx):
    """The answer, and the package of the event loop."""
    answer = await ctx.generate()
    return f"{answer.text} on {type(asyncio.get_running_loop()).__module__.split('.')[0]}"
'''


def environment_of(name: str, folder: Path) -> dict[str, str]:
    """For asyncio: where uvloop cannot be imported."""
    if name == "uvloop":
        return {}
    (folder / "hidden").mkdir()
    (folder / "hidden" / "uvloop.py").write_text("raise ImportError('hidden by a test')")
    return {"PYTHONPATH": str(folder / "hidden")}


@pytest.mark.long
@pytest.mark.parametrize("name", ["uvloop", "asyncio"])
def test_a_killed_run_is_resumed_on_either_event_loop(tmp_path: Path, name: str) -> None:
    store, env = tmp_path / "runs", environment_of(name, tmp_path)
    (tmp_path / "loops.py").write_text(_LOOPS)
    with start_server_process(Behaviour(latency_seconds=0.02)) as server:
        model = {"max_connections": AT_ONCE}
        spec = write_spec(tmp_path, ROWS, server.base_url, model=model, task={"solver": "loops:ask"})
        command = ("run", spec, "--id", "x", "--store", store)
        with start(*command, cwd=tmp_path, env=env, fresh=True) as process:
            assert wait_until(lambda: server.stats().requests >= ROWS // 2, process)
            finish(process, signal.SIGKILL)
        before = server.stats().requests
        with start(*command, cwd=tmp_path, env=env, fresh=True) as process:
            done = finish(process)
        assert done.code == 0, done.err
        assert server.stats().repeats <= AT_ONCE
        assert server.stats().requests - before < ROWS
    assert shown("x", store)["finished"] == ROWS
    texts = [line["output"] for line in exported("x", store)]
    assert [text for text in texts if not str(text).endswith(f" on {name}")] == []
