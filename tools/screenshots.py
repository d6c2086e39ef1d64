"""Take the pictures in docs/images: of the viewer, and a dark one of the HTML report. A small evaluation, the real
server, Debian's Chromium.

Run by hand with `make screenshots` when a page looks different: pictures differ a little from machine to machine.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from holdfast.view.pages import PAGES

IMAGES = Path(__file__).parents[1] / "docs" / "images"
BYTES_MAX = 150_000
_NAMES = {
    "experiment": "nightly",
    "run": "tuesday",
    "task": "arithmetic",
    "model": "large",
    "sample": "q014",
    "repeat": "1",
}
SHOTS: tuple[tuple[str, str, Literal["light", "dark"], int, int], ...] = (
    ("viewer-run", "/runs/{experiment}/{run}", "light", 1200, 760),
    ("viewer-samples", "/runs/{experiment}/{run}/samples", "light", 1200, 700),
    ("viewer-sample", "/runs/{experiment}/{run}/samples/{task}/{model}/{sample}/{repeat}", "dark", 1200, 760),
    ("viewer-compare", "/runs/{experiment}/{run}/compare", "light", 1200, 760),
    ("viewer-narrow", "/runs/{experiment}/{run}", "light", 360, 720),
    ("viewer-dark", "/runs/{experiment}/{run}", "dark", 1200, 760),
)
"""Name, page, theme, width and height."""
REPORTS: tuple[tuple[str, Literal["light", "dark"], int, int], ...] = (("report-dark", "dark", 1020, 640),)
"""Name, theme, width and height."""

_CODE = """
import asyncio
import zlib

from holdfast import Answer
from holdfast.models import ModelError
from holdfast.records import Usage


def chance(text):
    return zlib.crc32(text.encode()) / 2**32


def make(skill, seconds):
    async def answer(request):
        text = str(request.messages[-1]["content"])
        await asyncio.sleep(seconds * (0.5 + chance(text + "t")))
        one, sign, other = text.removesuffix("?").split()[-3:]
        if chance(text + "f") < 0.02:
            raise ModelError("bad_request", "upstream connect error or disconnect/reset before headers")
        right = int(one) * int(other) if sign == "*" else int(one) + int(other)
        said = right if chance(text + str(skill)) < skill else right + 10
        reply = f"First I work out {one} {sign} {other} step by step. The result is {said}."
        return Answer(reply, usage=Usage(len(text) * 3, len(reply) // 3))
    return answer


small, large = make(0.72, 0.05), make(0.91, 0.12)
"""

_RENAME = """([before, after]) => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replaceAll(before, after);
}"""


def main() -> int:
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        _run(Path(folder))
        server = _start("view", "runs", "--port", "0", "--no-open", folder=folder)
        assert server.stdout is not None
        link = server.stdout.readline().strip()
        browser = driver.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        try:
            for name, path, theme, width, height in SHOTS:
                if path in {page.path for page in PAGES}:
                    context = browser.new_context(
                        viewport={"width": width, "height": height}, color_scheme=theme, reduced_motion="reduce"
                    )
                    _take(context, link, _fill(path), IMAGES / f"{name}.png", folder)
                    context.close()
            for name, theme, width, height in REPORTS:
                size: Any = {"width": width, "height": height}
                context = browser.new_context(viewport=size, color_scheme=theme)
                _take_report(context, IMAGES / f"{name}.png", folder)
                context.close()
        finally:
            browser.close()
            server.terminate()
            server.wait()
    return 0


def _fill(path: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: quote(_NAMES[match[1]], safe=""), path)


def _take(context: Any, link: str, address: str, path: Path, folder: str) -> None:
    page = context.new_page()
    page.goto(link)
    response = page.goto(f"{link.partition('/?')[0]}{address}")
    assert response.status == 200, address
    page.wait_for_timeout(500)
    page.evaluate(_RENAME, [os.path.realpath(folder), "/data/evals"])
    _save(page, path)


def _take_report(context: Any, path: Path, folder: str) -> None:
    assert _start("report", "tuesday", "--output", "report.html", folder=folder).wait() == 0
    page = context.new_page()
    page.goto(f"file://{folder}/report.html")
    _save(page, path)


def _save(page: Any, path: Path) -> None:
    page.screenshot(path=str(path))
    size = path.stat().st_size
    print(f"{path.name}: {size / 1000:.0f} kB")
    assert size < BYTES_MAX, f"{path} is too large for the repository"


def _start(*arguments: str, folder: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "HOLDFAST_CACHE": f"{folder}/cache", "XDG_STATE_HOME": f"{folder}/state"}
    command = [sys.executable, "-m", "holdfast", *arguments]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def _run(folder: Path) -> None:
    (folder / "models.py").write_text(_CODE)
    tasks = []
    for name, sign in (("arithmetic", "+"), ("products", "*")):
        rows = [_row(number, sign) for number in range(1, 81)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        data = {"path": f"{name}.jsonl", "id": "id", "input": "question", "target": "answer"}
        tasks.append({"name": name, "dataset": data, "prompt": "{question}", "scorers": ["numeric"]})
    settings = {"price": {"input": 0.5, "output": 1.5}, "request_retries": 0}
    for run, models in (("monday", ("small",)), ("tuesday", ("small", "large"))):
        spec = {
            "experiment": "nightly",
            "description": "Arithmetic with carries, before the release",
            "tags": ["release", run],
            "models": [{"name": each, "provider": f"models:{each}", **settings} for each in models],
            "tasks": [{**each, "sample_retries": 0} for each in tasks],
        }
        (folder / "eval.json").write_text(json.dumps(spec))
        process = _start("run", "eval.json", "--id", run, folder=str(folder))
        process.communicate()
        assert process.returncode in (0, 1)


def _row(number: int, sign: str) -> dict[str, str]:
    one, other = number * 7, number + 3
    right = one + other if sign == "+" else one * other
    return {"id": f"q{number:03d}", "question": f"What is {one} {sign} {other}?", "answer": str(right)}


if __name__ == "__main__":
    sys.exit(main())
