"""The pages of samples and errors over HTTP: what they say is what `export` says, also after the server was killed."""

import json
import os
import random
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from tests.e2e.commands import call, finish, start
from tests.e2e.view.served import links_in

HOSTILE = "<script>alert(1)</script>"
PATIENCE_SECONDS = 120.0


def write_spec(folder: Path, rows: int) -> Path:
    lines = [
        {"id": f"q{n}", "question": f"{HOSTILE} What is {n}?", "answer": str(n), "level": n % 5} for n in range(rows)
    ]
    (folder / "d.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    refused = {"kind": "content_filter", "every": 9, "message": f"refused 12 {HOSTILE}"}
    models = [
        {"name": "small", "provider": "mock", "options": {"failures": [refused]}},
        {
            "name": "large",
            "provider": "mock",
            "price": {"input": 1, "output": 1},
            "options": {"reply": ["1", "a b", ""]},
        },
    ]
    dataset = {"path": "d.jsonl", "id": "id", "input": "question", "target": "answer"}
    task = {"name": "add", "dataset": dataset, "prompt": "{question}", "scorers": ["includes"]}
    spec = folder / "e.json"
    spec.write_text(json.dumps({"experiment": "e", "models": models, "tasks": [task]}))
    return spec


class Server:
    """`holdfast view` in a process of its own."""

    def __init__(self, cwd: Path) -> None:
        self.process: subprocess.Popen[str] = start("view", "runs", "--port", "0", "--no-open", cwd=cwd)
        assert self.process.stdout is not None
        link = urlsplit(self.process.stdout.readline().strip())
        self._root, self._token = f"{link.scheme}://{link.netloc}", link.query.removeprefix("token=")

    def get(self, path: str, **query: Any) -> str:
        given = {name.replace("__", "."): value for name, value in query.items()}
        request = urllib.request.Request(f"{self._root}{path}?{urlencode(given)}")
        request.add_header("Authorization", f"Bearer {self._token}")
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as reply:
            return str(reply.read().decode())

    def status(self, path: str, **query: Any) -> tuple[int, str]:
        try:
            return 200, self.get(path, **query)
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def samples(self, **query: Any) -> Any:
        return json.loads(self.get("/api/runs/e/r/samples", **query))

    def all_samples(self, **query: Any) -> list[Any]:
        """Every page, once the list is complete."""
        end = time.monotonic() + PATIENCE_SECONDS
        while (found := self.samples(**query))["progress"]["building"]:
            assert time.monotonic() < end
            time.sleep(0.05)
        lines = list(found["samples"])
        while found["next"] is not None:
            found = self.samples(**query, after=found["next"])
            lines += found["samples"]
        return lines


@contextmanager
def served(cwd: Path) -> Iterator[Server]:
    server = Server(cwd)
    try:
        yield server
    finally:
        finish(server.process, signal.SIGTERM)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with served(folder) as made:
        yield made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("listed")
    assert call("run", write_spec(made, 150), "--id", "r", cwd=made).code in (0, 1)
    return made


def exported(folder: Path) -> list[Any]:
    return [json.loads(line) for line in call("export", "r", cwd=folder).out.splitlines()]


def test_pages_join_to_what_the_export_has(folder: Path, server: Server) -> None:
    lines = exported(folder)
    found = server.all_samples(limit=70)
    assert [line["key"] for line in found] == [line["key"] for line in lines]
    assert [line["status"] for line in found] == [line["status"] for line in lines]
    failed = [line["key"] for line in lines if line["status"] == "failed"]
    assert [line["key"] for line in server.all_samples(status="failed", limit=7)] == failed
    wrong = [line["key"] for line in lines if line["scores"].get("includes") is False]
    assert [line["key"] for line in server.all_samples(wrong=1, limit=50)] == wrong
    asked = [line["key"] for line in lines if line["sample_id"] == "q17"]
    assert [line["key"] for line in server.all_samples(q="q17")] == asked
    assert len(server.all_samples(row__level=3, model="large")) == 30
    costs = [line["cost_usd"] for line in server.all_samples(sort="-cost", model="large", limit=40)]
    assert costs == sorted(costs, reverse=True)
    first = server.samples(limit=10)
    second = server.samples(limit=10, after=first["next"])
    assert server.samples(limit=10, before=second["prev"])["samples"] == first["samples"]
    assert first["prev"] is None
    assert (first["total"], first["exact"], first["coverage"]) == (300, True, 1.0)


def test_the_page_shows_texts_as_texts_and_links_to_the_next_page(server: Server) -> None:
    page = server.get("/runs/e/r/samples", limit=20, sort="-tokens", columns="sample,input,answer,row.level")
    assert HOSTILE not in page
    assert "&lt;script&gt;" in page
    assert 'rel="next"' in page
    assert 'aria-sort="descending"' not in page, "the sorted column is not shown"
    assert "row.level" in page
    assert "No sample matches." in server.get("/runs/e/r/samples", q="zebra")


@pytest.mark.parametrize("query", [{"sort": "size"}, {"after": "?"}, {"limit": "x"}, {"status": "<b>"}])
def test_a_query_that_makes_no_sense_is_answered_with_a_sentence(server: Server, query: dict[str, str]) -> None:
    for path in ("/api/runs/e/r/samples", "/runs/e/r/samples"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            server.get(path, **query)
        assert refused.value.code in (400, 404)
        assert path.startswith("/api") or "<b>" not in refused.value.read().decode()


def test_errors_add_up_and_lead_to_their_samples(folder: Path, server: Server) -> None:
    lines = exported(folder)
    found = json.loads(server.get("/api/runs/e/r/errors"))
    groups = {group["name"]: group for group in found["groups"]}
    assert groups["failed"]["count"] == sum(line["status"] == "failed" for line in lines)
    assert [cause["message"] for cause in groups["failed"]["causes"]] == [f"refused # {HOSTILE.replace('1', '#')}"]
    assert groups["marks"]["count"] == sum(len(line["marks"]) for line in lines)
    for group in groups.values():
        assert sum(cause["count"] for cause in group["causes"]) + group["others"] == group["count"]
        for cause in group["causes"]:
            assert len(server.all_samples(**cause["query"])) == cause["count"]
    page = server.get("/runs/e/r/errors")
    assert HOSTILE not in page
    assert page.count("data-live") == 3, "one region for all groups: a group that comes later is shown too"
    assert "/samples?status=failed" in page


def state_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file of the run."""
    found = [Path(above, name) for above, _, names in os.walk(folder / "runs" / "e") for name in names]
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in found}


@pytest.mark.long
def test_a_server_that_is_killed_while_it_builds_leaves_a_list_that_the_next_one_completes(tmp_path: Path) -> None:
    assert call("run", write_spec(tmp_path, 2000), "--id", "r", cwd=tmp_path).code in (0, 1)
    keys, before, draw = [line["key"] for line in exported(tmp_path)], state_of(tmp_path), random.Random(1)
    listed = []
    for _ in range(4):
        server = Server(tmp_path)
        listed.append(server.samples()["progress"]["listed"])
        time.sleep(draw.random() / 5)
        finish(server.process, signal.SIGKILL)
    assert listed == sorted(listed)
    with served(tmp_path) as server:
        assert [line["key"] for line in server.all_samples(limit=1000)] == keys
    assert state_of(tmp_path) == before, "nothing is written to the run"


def test_choosing_any_scorer_again_takes_the_conditions_on_scores_away(server: Server) -> None:
    every = server.all_samples(limit=1000)
    for name, value in (("score", "wrong"), ("score_min", "0.5"), ("score_max", "1"), ("label", "x")):
        text = server.get("/runs/e/r/samples", scorer="", status="failed", limit=1000, **{name: value})
        assert "Conditions on a score were left out" in text
        shown = [line for line in every if line["status"] == "failed"]
        assert f"{len(shown):,} match, {len(shown):,} on this page" in text
        assert f"{name}={value}" not in text
        assert f'name="{name}"' not in text or f'value="{value}" selected' not in text
        status, reply = server.status("/api/runs/e/r/samples", scorer="", **{name: value})
        assert (status, "scorer=NAME" in json.loads(reply)["error"]) == (400, True)


def test_a_column_of_the_row_is_counted_and_a_misspelt_one_is_named(server: Server) -> None:
    server.all_samples()
    found = server.samples(row__level=3, limit=7)
    assert (len(found["samples"]), found["total"], found["exact"]) == (7, 60, True)
    assert server.samples(row__level=3, status="failed", limit=7)["total"] < 60
    assert "60 match, 7 on this page" in server.get("/runs/e/r/samples", row__level=3, limit=7)
    found = server.samples(row__levle=3)
    assert (found["total"], found["notes"]) == (0, ["No row has a column 'levle'; did you mean 'level'?"])


@pytest.mark.parametrize(
    ("path", "query", "status", "says"),
    [
        ("/api/nope", {}, 404, "no such"),
        ("/api", {}, 404, "no such"),
        ("/api/runs/e/r/nope", {}, 404, "no such"),
        ("/api/runs/e/nope", {}, 404, "no run"),
        ("/api/runs/e/r/samples", {"limit": -1}, 400, "whole number"),
        ("/api/runs/e/r/samples", {"limit": 0}, 400, "between 1 and 1,000"),
        ("/api/runs/e/r/samples", {"limit": 99999}, 400, "between 1 and 1,000"),
        ("/api/runs/e/r/samples", {"statsu": "failed"}, 400, "did you mean 'status'"),
        ("/api/runs/e/r", {"page": 2}, 400, "page"),
        ("/api/runs", {"sort": "costs"}, 400, "did you mean 'cost'"),
    ],
)
def test_a_wrong_request_for_data_is_answered_with_an_error_as_data(
    server: Server, path: str, query: dict[str, Any], status: int, says: str
) -> None:
    code, reply = server.status(path, **query)
    assert (code, list(json.loads(reply))) == (status, ["error"])
    assert says in json.loads(reply)["error"]


def test_every_parameter_that_pages_send_is_known_to_their_data(server: Server) -> None:
    for page in ("/", "/runs/e/r", "/runs/e/r/samples", "/runs/e/r/lineage", "/runs/e/r/errors", "/runs/e/r/compare"):
        for address in links_in(server.get(page)):
            path, _, query = address.partition("?")
            if path.startswith("/runs/") and "/blobs/" not in path and not path.endswith((".json", "/line", "/text")):
                given = {name: values[0] for name, values in parse_qs(query.partition("#")[0]).items()}
                assert server.status(f"/api{path.partition('#')[0]}", **given)[0] == 200, address
