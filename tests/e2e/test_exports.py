"""Reports and exports by the real command: the same figures in every form, in a real browser too."""

import http.server
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas
import pytest

from holdfast.runs import find_run
from tests.caches import set_row, tamper
from tests.e2e.commands import call, run, write_rows, write_spec
from tests.oracle import check_reports

HOSTILE = "<img src=\"{url}/{place}\"><script>fetch('{url}/{place}')</script>"
CHROMIUM = next((found for name in ("chromium", "chromium-browser") if (found := shutil.which(name))), "")


class Server(http.server.ThreadingHTTPServer):
    """Remembers what was asked for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.send_response(404)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Not on the test's standard error."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, server: Server) -> Path:
    """Two models and three repeats; answers, errors and names that a browser must not take for markup."""
    made = tmp_path_factory.mktemp("exports")
    (made / "own.py").write_text(
        "import re\n"
        f"HOSTILE = {HOSTILE.format(url=server.url, place='answer')!r}\n"
        "async def answer(request):\n"
        "    text = request.messages[-1]['content']\n"
        "    if text == '3':\n"
        "        raise ValueError(HOSTILE)\n"
        "    return text + HOSTILE\n"
        "def broken(sample, answer):\n"
        "    raise ValueError(answer.text)\n"
    )
    rows = [{"id": f"s{i}", "question": str(i), "answer": str(i % 2)} for i in range(6)]
    task = {"prompt": "{question}", "scorers": ["includes", "own:broken"], "repeats": 3, "sample_retries": 0}
    spec = write_spec(
        made,
        task=task,
        model={"provider": "own:answer", "options": {}, "name": HOSTILE.format(url=server.url, place="name")},
        description="hostile",
    )
    write_rows(made / "sums.jsonl", rows)
    assert call("run", spec, "--id", "odd", cwd=made).code == 1
    good = write_spec(made, rows=8, model={"price": {"input": 1.0, "output": 2.0}}, task={"repeats": 2})
    assert call("run", good, "--id", "good", cwd=made).code == 0
    return made


def reported(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = call("report", name, "--json", cwd=folder).json()
    return found


def shown_figures(report: dict[str, Any]) -> list[str]:
    """Means and intervals as every table writes them."""
    summaries = [each["summary"] for cell in report["cells"] for each in cell["scorers"]]
    return [f"{each[name]:.4f}" for each in summaries for name in ("mean", "low", "high") if each[name] is not None]


@pytest.mark.parametrize("form", ["markdown", "md", "latex", "html"])
def test_every_form_of_a_report_has_the_figures_of_the_report(folder: Path, form: str) -> None:
    done = call("report", "odd", "good", "--format", form, cwd=folder)
    assert done.code == 0, done.err
    figures = [each for name in ("odd", "good") for each in shown_figures(reported(folder, name))]
    assert len(figures) >= 6
    assert [each for each in figures if each not in done.out] == []


def test_several_runs_in_json_are_a_list(folder: Path) -> None:
    several = call("report", "odd", "good", "--json", cwd=folder).json()
    assert several == [reported(folder, "odd"), reported(folder, "good")]


def test_an_export_in_every_format_has_the_same_scores(folder: Path) -> None:
    for format in ("csv", "parquet", "jsonl"):
        done = call("export", "good", "--format", format, "--output", f"x.{format}", cwd=folder)
        assert (done.code, done.err) == (0, f"wrote x.{format}\n")
    lines = [json.loads(line) for line in (folder / "x.jsonl").read_text().splitlines()]
    told = [line["scores"]["numeric"] for line in lines]
    assert pandas.read_parquet(folder / "x.parquet")["numeric"].tolist() == told
    assert pandas.read_csv(folder / "x.csv")["numeric"].tolist() == told
    (cell,) = reported(folder, "good")["cells"]
    assert sum(told) / len(told) == cell["scorers"][0]["summary"]["mean"]
    paid = pandas.read_parquet(folder / "x.parquet")["cost_usd"].sum()
    assert paid == pytest.approx(cell["cost"]["dollars"], rel=1e-9)


def test_what_does_not_go_together_is_said_in_one_sentence(folder: Path) -> None:
    for wrong, said in (
        (("export", "good", "--format", "parquet"), "name a file with --output"),
        (("export", "good", "--format", "parquet", "--events", "--output", "x"), "cannot hold events"),
        (("report", "good", "odd", "--format", "junit"), "takes one run"),
        (("report", "good", "--format", "htm"), "did you mean 'html'"),
        (("report", "good", "--plots", "p", "--plot-format", "gif"), "png or svg"),
        (("report", "good", "--plots", "own.py/p"), "cannot be written"),
    ):
        done = call(*wrong, cwd=folder)
        assert done.code == 2, wrong
        assert said in done.err, done.err


def test_figures_are_drawn_into_a_folder_and_are_the_same_every_time(folder: Path) -> None:
    for name in ("one", "two"):
        done = call("report", "good", "--plots", name, "--plot-format", "svg", cwd=folder)
        assert done.code == 0, done.err
    found = {path.name: path.read_bytes() for path in (folder / "one").iterdir()}
    kinds = ["cost-numeric.svg", "pass-at-k-numeric.svg", "scores-numeric.svg", "seconds.svg"]
    assert sorted(found) == kinds
    assert found == {path.name: path.read_bytes() for path in (folder / "two").iterdir()}


def dom(page: Path, folder: Path) -> str:
    """What a real browser makes of a page, after its scripts, if it had any."""
    quiet = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
    command = [CHROMIUM, *quiet, f"--user-data-dir={folder / 'chromium'}", "--dump-dom", page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed: tools/system-packages chromium")
def test_a_real_browser_shows_the_figures_of_a_page_and_requests_nothing(
    folder: Path, server: Server, tmp_path: Path
) -> None:
    path = folder / "page.html"
    assert call("report", "odd", "good", "--format", "html", "--output", path, cwd=folder).code == 0
    server.asked.clear()
    seen = dom(path, tmp_path)
    assert server.asked == []
    figures = [each for name in ("odd", "good") for each in shown_figures(reported(folder, name))]
    assert [each for each in figures if f">{each}<" not in seen and each not in seen] == []
    assert len(re.findall(r"<svg\b", seen)) >= 6
    assert "<img" not in seen
    assert "&lt;img" in seen
    careless = tmp_path / "careless.html"
    careless.write_text(HOSTILE.format(url=server.url, place="careless"))
    dom(careless, tmp_path)
    assert "/careless" in server.asked  # a page that is not careful is found out


def test_verify_compares_every_number_and_finds_an_index_that_was_tampered_with(folder: Path) -> None:
    done = run("verify", "good", "--scores", cwd=folder)
    assert done.code == 0, done.said
    assert re.search(r"good: \d+ numbers compared with an index rebuilt from \d+ records: all equal\.", done.out)
    assert "scorer numeric: 16 scores computed again" in done.out
    assert check_reports(find_run(str(folder / "runs"), "good")).differences == []
    tamper(folder / "runs" / "sums" / "good", "scores", set_row(encoded=b"true"))
    done = run("verify", "good", "--scores", cwd=folder)
    assert done.code == 5
    assert "scorers[numeric].summary.mean: the report says 1, the journal 0.125" in done.out
    told = call("verify", "good", "--scores", "--json", cwd=folder)
    assert (told.code, told.json()["ok"], told.json()["errors"]) == (0, True, [])  # the first one removed it
    assert call("verify", "good", "--scores", cwd=folder).code == 0
