"""Tasks with `share: no-text`: what is published has their numbers, and none of their text."""

import base64
import re
import zlib
from pathlib import Path

import pytest

from tests.e2e.commands import Done, call, write_rows

QUESTION, TARGET, REPLY = "quokkaquestion", "zebratarget", "narwhalreply"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run with a restricted task, which has wrong and failed answers, and an open one."""
    rows = [{"id": f"s{i}", "question": f"{QUESTION} {i}", "answer": ["yes", TARGET]} for i in range(4)]
    write_rows(tmp_path / "secret.jsonl", rows)
    write_rows(tmp_path / "open.jsonl", [{"id": "o1", "question": "openquestion", "answer": "8"}])
    (tmp_path / "mine.py").write_text(
        "from holdfast import Score, scorer\n\n@scorer\ndef judged(sample, answer):\n"
        f'    return Score(False, "{REPLY} is not {TARGET}")\n\n'
        "async def refuse(sample, ctx):\n    raise ValueError(f\"cannot do {sample.row['question']}\")\n\n"
        "@scorer\ndef broken(sample, answer):\n    raise ValueError(f'{sample.target} is none')\n"
    )
    (tmp_path / "eval.yaml").write_text(
        f"""
models:
  - {{name: parrot, provider: mock, options: {{reply: "{REPLY}"}}}}
  - {{name: other, provider: mock, options: {{reply: "yes"}}}}
tasks:
  - name: secret
    share: no-text
    dataset: {{path: secret.jsonl, input: question, target: answer}}
    prompt: "Tell: {{question}}"
    scorers: [exact_match, "mine:judged"]
  - name: open
    dataset: {{path: open.jsonl, input: question, target: answer}}
    prompt: "Tell: {{question}}"
    scorers: [exact_match]
"""
    )
    assert call("run", "eval.yaml", "--id", "x", cwd=tmp_path).code == 0
    return tmp_path


@pytest.fixture
def failing(folder: Path) -> Path:
    """The same run, but the code of a solver and of a scorer fails, with messages that quote the row."""
    text = (folder / "eval.yaml").read_text()
    scored = text.replace('"mine:judged"', '"mine:judged", "mine:broken"')
    failed = (
        "  - name: refused\n    solver: mine:refuse\n"
        + text.partition("  - name: secret\n")[2].partition("  - name: open")[0]
    )
    (folder / "eval.yaml").write_text(scored.replace("  - name: open\n", failed + "  - name: open\n"))
    assert call("run", "eval.yaml", "--id", "y", cwd=folder).code == 1
    return folder


def readable(path: Path) -> str:
    """The text of a file of a static copy; packed rows and samples are unpacked."""
    text = path.read_text(errors="replace") if path.is_file() else ""
    packed = re.search(r'holdfastData.*push\("([^"]+)"\)', text)
    return text if packed is None else zlib.decompress(base64.b64decode(packed[1])).decode()


def text_of(done: Done) -> str:
    assert done.code == 0, done.said
    return done.out


@pytest.mark.parametrize("format", ["html", "junit", "markdown", "latex"])
def test_a_published_report_has_no_text_of_a_restricted_task(folder: Path, format: str) -> None:
    text = text_of(call("report", "x", "--format", format, cwd=folder))
    assert "secret" in text
    for word in (QUESTION, TARGET):
        assert word not in text
    if format in ("html", "junit"):
        assert "openquestion" in text
        assert QUESTION in text_of(call("report", "x", "--format", format, "--include-restricted", cwd=folder))


def test_a_static_copy_has_no_text_of_a_restricted_task(folder: Path) -> None:
    for options, is_there in (((), False), (("--include-restricted",), True)):
        made = folder / f"copy{len(options)}"
        text_of(call("view", "x", "--bundle", made, *options, cwd=folder))
        text = "".join(map(readable, made.rglob("*")))
        assert "openquestion" in text
        assert ("Withheld: " in text) is not is_there
        for word in (QUESTION, TARGET, f"{REPLY} is not"):
            assert (word in text) is is_there, word


def test_messages_of_failures_are_published_without_the_text_that_they_quote(failing: Path) -> None:
    published = [
        text_of(call("report", "y", "--format", format, cwd=failing))
        for format in ("html", "junit", "markdown", "json")
    ]
    summary = failing / "summary.md"
    published.append(text_of(call("report", "y", "--github", cwd=failing, env={"GITHUB_STEP_SUMMARY": str(summary)})))
    text_of(call("view", "y", "--bundle", failing / "copy", cwd=failing))
    published += [summary.read_text(), "".join(map(readable, (failing / "copy").rglob("*")))]
    for text in published:
        assert "refused" in text
        for word in (QUESTION, TARGET):
            assert word not in text
    for word in (QUESTION, TARGET):
        assert word in text_of(call("report", "y", cwd=failing))


def test_commands_that_publish_nothing_show_the_text(folder: Path) -> None:
    assert QUESTION in text_of(call("show", "x", "--wrong", cwd=folder))
    assert QUESTION in text_of(call("export", "x", cwd=folder))
