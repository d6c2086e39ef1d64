"""Terminals that cannot show every character: no command fails, and machine-readable output loses nothing."""

import html
import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.e2e.commands import call, environment, write_spec

REPLY = "→ 8 模型 é 😀"
KEY = "sümme/é模/s0001/1"
FOR_PEOPLE = [["show", "r"], ["ls"], ["show", "r", KEY]]
FOR_MACHINES = [["show", "r", "--json"], ["show", "r", KEY, "--json"]]


@pytest.mark.parametrize("encoding", ["ascii", pytest.param("latin-1", marks=pytest.mark.long)])
def test_no_command_fails_or_loses_text_because_of_the_encoding(tmp_path: Path, encoding: str) -> None:
    write_spec(tmp_path, 2, model={"name": "é模", "options": {"reply": REPLY}}, task={"name": "sümme"})
    assert call("run", "eval.yaml", "--id", "r", cwd=tmp_path).code == 0
    for command in FOR_PEOPLE:
        assert "?" not in printed(tmp_path, encoding, *command)[0].decode(encoding)
    for command in FOR_MACHINES:
        assert json.loads(printed(tmp_path, encoding, *command)[0]) == call(*command, cwd=tmp_path).json()
    lines = [json.loads(line) for line in printed(tmp_path, encoding, "export", "r")[0].splitlines()]
    assert {(line["task"], line["model"], line["output"]) for line in lines} == {("sümme", "é模", REPLY)}
    junit = ElementTree.fromstring(printed(tmp_path, encoding, "report", "r", "--format", "junit")[0])
    assert any("é模" in each.get("classname", "") + each.get("name", "") for each in junit.iter("testcase"))
    page = printed(tmp_path, encoding, "report", "r", "--format", "html")[0]
    assert "é模" in html.unescape(page.decode("utf-8"))


def test_csv_says_that_it_cannot_hold_every_character(tmp_path: Path) -> None:
    write_spec(tmp_path, 2, model={"options": {"reply": REPLY}})
    assert call("run", "eval.yaml", "--id", "r", cwd=tmp_path).code == 0
    out, err = printed(tmp_path, "latin-1", "export", "r", "--format", "csv")
    assert "\\u2192 8 \\u6a21\\u578b é \\ud83d\\ude00" in out.decode("latin-1")
    assert b"--output FILE writes UTF-8" in err


def printed(folder: Path, encoding: str, *command: str) -> tuple[bytes, bytes]:
    argv = [sys.executable, "-m", "holdfast", *command]
    env = environment({"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"})
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, (command, done.stderr)
    assert b"Traceback" not in done.stdout + done.stderr
    return done.stdout, done.stderr
