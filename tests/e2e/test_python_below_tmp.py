"""Python installed below /tmp, as CI runners do it: sandboxes and `code_tests` work, and cannot change it."""

import json
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from holdfast.records.samples import Message
from holdfast.sandbox.confinement import PLAIN, why_no_namespaces
from tests.e2e.agents import serving
from tests.e2e.commands import environment
from tests.e2e.test_sandbox import commands, final_files

pytestmark = pytest.mark.skipif(bool(why_no_namespaces()), reason=why_no_namespaces())
CODE = "```python\ndef add(a, b):\n    return a + b\n```"


@pytest.fixture
def python(request: pytest.FixtureRequest) -> Iterator[Path]:
    """The interpreter of a virtual environment below /tmp; an import hook finds our packages where they are."""
    with tempfile.TemporaryDirectory(dir="/tmp") as top:
        home = Path(top, request.param)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
        site = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
        ours = [sysconfig.get_path("purelib"), str(Path(__file__).parents[2] / "src")]
        (site / "ours.pth").write_text("\n".join(ours))
        (home / "precious").write_text("kept")
        yield home / "bin" / "python"


def answer(*given: str) -> object:
    """A model that runs these commands and then answers with code."""
    run_commands = commands(*given)

    def reply(messages: list[Message]) -> Message:
        said: Message = run_commands(messages)
        return said if said.get("tool_calls") else {"role": "assistant", "content": CODE}

    return reply


@pytest.mark.parametrize(
    "python",
    [pytest.param("", id="directly below"), pytest.param("ci/venv", id="deeper", marks=pytest.mark.long)],
    indirect=True,
)
def test_sandbox_and_code_tests_work_and_the_installation_stays_as_it_is(tmp_path: Path, python: Path) -> None:
    home = python.parents[1]
    given = [
        "python -c 'import sys; print(sys.prefix)'",
        f"rm -rf {home}; echo 1 > {home}/new; mv {home} {home}-moved; echo own > /tmp/mine",
        "cat /tmp/mine; python -c 'print(40 + 2)'",
    ]
    with serving(answer(*given)) as server:
        write(tmp_path, server.base_url)
        argv = [str(python), "-m", "holdfast", "run", "eval.yaml", "--id", "r"]
        done = subprocess.run(
            argv, cwd=tmp_path, env=environment({PLAIN: ""}), capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr
    lines = subprocess.run(
        [sys.executable, "-m", "holdfast", "export", "r", "--events"],
        cwd=tmp_path,
        env=environment({PLAIN: ""}),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    line = json.loads(lines)
    assert line["scores"] == {"code_tests": True}
    assert str(home) in lines
    assert "own\\n42" in lines
    assert (home / "precious").read_text() == "kept"
    assert not (home / "new").exists()
    assert [name for name in final_files(tmp_path).entries if name.startswith("tmp/")] == ["tmp/mine"]


def write(folder: Path, base_url: str) -> None:
    (folder / "rows.jsonl").write_text(json.dumps({"id": "s0", "q": "go", "tests": "assert add(1, 2) == 3"}) + "\n")
    task = {
        "name": "t",
        "dataset": {"path": "rows.jsonl"},
        "prompt": "{q}",
        "solver": {"react": {"tools": ["bash"]}},
        "sandbox": {},
        "scorers": ["code_tests"],
    }
    models = [{"name": "m", "provider": "openai", "model": "m", "base_url": base_url}]
    (folder / "eval.yaml").write_text(yaml.safe_dump({"models": models, "tasks": [task]}, sort_keys=False))
