"""The pages of a sample over HTTP, on a run of agents that was killed and resumed: every part, with hostile texts."""

import base64
import hashlib
import json
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import pytest
import yaml

from holdfast.records import parse, seed_of
from holdfast.view.links import Links
from holdfast.view.sources import RunRef
from tests.e2e.agents import agent, serving
from tests.e2e.commands import call, run, snapshot, write_rows
from tests.e2e.view.viewer import Viewer, viewing

REF = RunRef("agents", "r")
KEY = "t/m/s0/1"
SAMPLE = "/runs/agents/r/samples/t/m/s0/1"
EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>"
STRANGE_ID = "a/b%?#c ~ü"
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
SVG = b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'><script>alert(2)</script></svg>"
TURNS = 36
TOOLS = f'''
import os, signal
from pathlib import Path
import holdfast

HERE = Path(__file__).parent

@holdfast.tool
async def note(n: int) -> str:
    """Write a number down."""
    if n == 50:
        raise LookupError({EVIL!r})
    if n == 200 and not (HERE / "died").exists():
        (HERE / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return {EVIL!r} if n == 10 else "long " * 10_000 if n == 20 else f"noted {{n}}"

@holdfast.scorer
async def judged(sample, answer, ctx):
    said = (await ctx.generate(f"Is it right? {{answer.text}}", role="judge")).text
    return holdfast.Score(True, reason=f"the judge said {{said}}", metadata={{"evil": {EVIL!r}}})
'''


class Document(HTMLParser):
    """Every element of a page, with its attributes, and every text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)

    def ids(self) -> set[str]:
        return {str(found["id"]) for _, found in self.elements if "id" in found}

    def addresses(self) -> list[str]:
        return [str(found[name]) for _, found in self.elements for name in ("href", "src", "action") if name in found]


def require_harmless(text: str) -> Document:
    """Nothing on the page can run, and nothing is loaded from elsewhere."""
    found = Document(text)
    for tag, attributes in found.elements:
        assert tag not in ("iframe", "object", "embed", "base", "style")
        assert not any(name.startswith("on") or name == "style" for name in attributes), attributes
        if tag == "script":
            assert str(attributes.get("src", "")).startswith("/static/")
    assert all(address.startswith(("/", "?", "#", "data:image/svg+xml,")) for address in found.addresses())
    return found


class Stage(NamedTuple):
    folder: Path
    viewer: Viewer

    @property
    def store(self) -> Path:
        return self.folder / "runs"

    def page(self, path: str) -> Document:
        reply = self.viewer.get(path)
        assert reply.status == 200, reply.text
        assert "default-src 'none'" in reply.headers["Content-Security-Policy"]
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        return require_harmless(reply.text)

    def data(self, path: str) -> Any:
        reply = self.viewer.get(f"/api{path}")
        assert reply.status == 200, reply.text
        return reply.json()

    def shown(self, key: str = KEY) -> Any:
        return call("show", "r", key, "--json", "--store", self.store, cwd=self.folder).json()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("agents")
    (folder / "mine.py").write_text(TOOLS)
    (folder / "pic.png").write_bytes(PIXEL)
    (folder / "evil.svg").write_bytes(SVG)
    rows: list[dict[str, Any]] = [
        {"id": "s0", "q": EVIL, "t": f"done after {TURNS}", "img": "pic.png", "svg": "evil.svg", EVIL: EVIL},
        {"id": STRANGE_ID, "q": "two", "t": "no", "img": "pic.png", "svg": "evil.svg"},
    ]
    write_rows(folder / "rows.jsonl", rows)
    with serving(agent(TURNS)) as server:
        question = [{"type": "text", "text": "{q}"}, {"type": "image_url", "image_url": {"url": "{img}"}}]
        task = {
            "name": "t",
            "dataset": {"path": "rows.jsonl", "id": "id", "input": "q", "target": "t", "files": ["img", "svg"]},
            "messages": [{"role": "system", "content": "Be terse."}, {"role": "user", "content": question}],
            "solver": {"react": {"tools": ["mine:note"], "turns": 60}},
            "scorers": ["exact_match", "mine:judged"],
            "repeats": 2,
        }
        own = {"name": "m", "provider": "openai", "model": "m", "base_url": server.base_url}
        spec = {
            "experiment": "agents",
            "models": [
                {**own, "price": {"input": 3.0, "output": 15.0}, "record_raw": True},
                {"name": "other", "provider": "mock", "options": {"reply": "other answer"}},
                {
                    "name": "bad",
                    "provider": "mock",
                    "options": {"failures": [{"kind": "content_filter", "message": EVIL}]},
                },
            ],
            "roles": {"judge": {"provider": "mock", "options": {"reply": f"yes {EVIL}"}}},
            "tasks": [task],
        }
        (folder / "eval.yaml").write_text(yaml.safe_dump(spec))
        command = ("run", "eval.yaml", "--id", "r", "--store", folder / "runs")
        assert run(*command, cwd=folder).code == -9
        assert run(*command, cwd=folder).code == 1  # the samples of one model fail
    before = snapshot(folder / "runs")
    with viewing(folder / "runs") as viewer:
        yield Stage(folder, viewer)
    assert snapshot(folder / "runs") == before  # looking writes nothing


def test_question_target_answer_scores_and_the_judge_are_on_the_page(stage: Stage) -> None:
    page = stage.page(SAMPLE)
    for text in (EVIL, f"done after {TURNS}", "exact_match", "right", f"the judge said yes {EVIL}", "Is it right?"):
        assert text in page.text, text
    for text in ("Be terse.", "system", "user", "assistant", "calls note", '{"n":0}', "noted 0", "role judge"):
        assert text in page.text, text
    assert {"question", "answer", "scores", "timeline", "steps", "judges"} <= page.ids()
    assert "edit" not in page.ids()


def test_commands_to_replay_and_fork_can_be_copied(stage: Stage) -> None:
    commands = stage.data(SAMPLE)["commands"].values()
    assert f"holdfast replay r {KEY}" in commands  # the viewer was started beside the store, so it need not be named
    assert "holdfast fork r --id r-2" in commands
    page = stage.page(SAMPLE)
    assert all(each in page.text for each in commands)


def test_every_step_has_a_permalink_that_opens_its_window(stage: Stage) -> None:
    steps = stage.shown()["attempts"][0]["steps"]
    assert len(steps) == 2 * TURNS - 1
    assert "step-" + str(steps[0]["n"]) in stage.page(SAMPLE).ids()
    last = f"step-{steps[-1]['n']}"
    assert last not in stage.page(SAMPLE).ids()
    for path in (f"{SAMPLE}?step={steps[-1]['n']}", f"{SAMPLE}?step=last"):
        page = stage.page(path)
        assert last in page.ids()
        assert f"Steps 51 to {len(steps)} of {len(steps)}" in page.text
    assert f"{SAMPLE}?step={steps[-1]['n']}#{last}" in stage.page(f"{SAMPLE}?step=last").addresses()


def test_windows_of_the_json_twin_are_the_story_of_the_command(stage: Stage) -> None:
    shown = stage.shown()
    first, last = stage.data(SAMPLE), stage.data(f"{SAMPLE}?step=last")
    steps = first["story"]["attempts"][0]["steps"] + last["story"]["attempts"][0]["steps"]
    assert steps == shown["attempts"][0]["steps"]
    for name in ("answer", "scores", "judgings", "row", "input", "target", "status", "messages", "anomalies"):
        assert first["story"][name] == last["story"][name] == shown[name], name
    assert first["window"]["after"] == last["story"]["attempts"][0]["steps"][0]["n"]


def test_the_timeline_shows_the_kill_and_what_was_replayed(stage: Stage) -> None:
    found = stage.data(SAMPLE)
    first, second = found["timeline"]["lives"]
    assert (first["end"], first["killed"], first["replayed"]) == ("killed", True, 0)
    assert (second["end"], second["killed"]) == ("finished", False)
    assert second["replayed"] == first["steps"] == found["story"]["attempts"][0]["spent"]["replayed"]
    page = stage.page(SAMPLE)
    assert "killed before the sample was finished" in page.text
    assert "Process 2 began at" in stage.page(f"{SAMPLE}?step={found['story']['attempts'][0]['steps'][-1]['n']}").text


def test_costs_times_and_tokens_are_those_of_each_step(stage: Stage) -> None:
    (asked, called) = stage.shown()["attempts"][0]["steps"][:2]
    page = stage.page(SAMPLE)
    assert asked["dollars"] is not None
    assert f"{asked['usage']['input_tokens']} in, {asked['usage'].get('output_tokens', 0)} out" in page.text
    assert called["at"][11:19] in page.text


def test_a_long_text_is_cut_and_all_of_it_is_one_link_away(stage: Stage) -> None:
    page = stage.page(SAMPLE)
    (address,) = {each for each in page.addresses() if "pointer=%2Fvalue" in each}
    assert "show all (50.0 kB)" in page.text
    reply = stage.viewer.get(address)
    assert reply.text == "long " * 10_000
    assert reply.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert reply.headers["X-Content-Type-Options"] == "nosniff"


def test_texts_are_found_by_record_and_pointer_and_nothing_else_is(stage: Stage) -> None:
    answered = stage.data(SAMPLE)["story"]["answered"]
    links = Links()
    assert stage.viewer.get(links.text(REF, KEY, answered, "/answer/text")).text == f"done after {TURNS}"
    name = EVIL.replace("/", "~1")
    assert stage.viewer.get(links.text(REF, KEY, 0, f"/row/{name}")).text == EVIL
    assert stage.viewer.get(links.text(REF, KEY, answered, "")).json()["answer"]["text"] == f"done after {TURNS}"
    for n, pointer in (
        (answered, "/answer/nothing"),
        (answered, "/answer/tool_calls/000000000000"),
        (answered, "/answer/text/0"),
        (10**9, ""),
        (0, "/row/0"),
    ):
        assert stage.viewer.get(links.text(REF, KEY, n, pointer)).status == 404


def test_pictures_are_shown_and_other_files_are_saved(stage: Stage) -> None:
    page = stage.page(SAMPLE)
    digest = hashlib.sha256(PIXEL).hexdigest()
    assert next(found["src"] for tag, found in page.elements if tag == "img") == f"/runs/agents/r/blobs/{digest}"
    picture = stage.viewer.get(f"/runs/agents/r/blobs/{digest}")
    assert (picture.headers["Content-Type"], picture.body) == ("image/png", PIXEL)
    assert "Content-Disposition" not in picture.headers
    other = stage.viewer.get(f"/runs/agents/r/blobs/{hashlib.sha256(SVG).hexdigest()}?name=../x.svg")
    assert (other.headers["Content-Type"], other.body) == ("application/octet-stream", SVG)
    assert other.headers["Content-Disposition"] == 'attachment; filename="x.svg"'
    assert picture.headers["X-Content-Type-Options"] == other.headers["X-Content-Type-Options"] == "nosniff"
    for wrong in ("0" * 64, "..%2F..%2Fspec.yaml", digest.upper(), f"{digest}x"):
        assert stage.viewer.get(f"/runs/agents/r/blobs/{wrong}").status == 404


def test_the_whole_request_and_the_servers_own_response_are_on_a_page(stage: Stage) -> None:
    step = next(each for each in stage.shown()["attempts"][0]["steps"] if each["turn"] == 3)
    found = stage.data(f"{SAMPLE}/steps/{step['n']}")
    assert [each["role"] for each in found["messages"]] == ["system", "user", "assistant", "tool", "assistant", "tool"]
    assert found["tools"][0]["function"]["name"] == "note"
    assert found["is_raw"]
    assert found["response"] == step["raw"]
    page = stage.page(f"{SAMPLE}/steps/{step['n']}")
    assert '"role": "system"' in page.text
    assert "raw" in page.ids()
    called = next(each for each in stage.shown()["attempts"][0]["steps"] if each["kind"] == "call")
    assert stage.viewer.get(f"{SAMPLE}/steps/{called['n']}").status == 404


def test_a_sample_opens_to_its_records_with_places_and_checksums(stage: Stage) -> None:
    found = stage.data(f"{SAMPLE}/records")
    assert found["total"] == len(found["records"])
    stored = {}
    for reply in (stage.viewer.get(f"{SAMPLE}/records/{each['n']}/line") for each in found["records"]):
        line = json.loads(reply.body)
        stored[line["n"]] = (line["t"], line["x"], len(reply.body))
    assert stored == {each["n"]: (each["type"], each["checksum"], each["bytes"]) for each in found["records"]}
    page = stage.page(f"{SAMPLE}/records")
    assert all(each["checksum"] in page.text for each in found["records"])


def test_a_record_is_shown_as_it_is_stored(stage: Stage) -> None:
    story = stage.data(SAMPLE)["story"]
    uid = json.loads(stage.viewer.get(f"{SAMPLE}/records/{story['answered']}/line").body)
    assert uid["d"]["answer"]["text"] == f"done after {TURNS}"
    seed = seed_of(_uid(stage.store / "agents" / "r"))
    score = next(each for each in story["scores"] if each["scorer"] == "judged")
    for n in (story["answered"], score["n"]):
        reply = stage.viewer.get(f"{SAMPLE}/records/{n}/line")
        assert reply.headers["Content-Disposition"] == f'attachment; filename="record-{n}.json"'
        found = parse(reply.body.removesuffix(b"\n"), seed)
        assert found is not None, "the checksum of the line is right, so it is what was written, byte for byte"
        data = stage.data(f"{SAMPLE}/records/{n}")
        assert data["data"] == json.loads(reply.body)["d"]
        page = stage.page(f"{SAMPLE}/records/{n}")
        assert data["facts"]["checksum"] in page.text
        assert f"{SAMPLE}/records/{n}/line" in page.addresses()
    assert EVIL.replace('"', '\\"') in stage.page(f"{SAMPLE}/records/{score['n']}").text
    for wrong in ("0", "1", "999999", "x", "-1", "9" * 30):
        assert stage.viewer.get(f"{SAMPLE}/records/{wrong}").status == 404


def _uid(folder: Path) -> str:
    from holdfast.journal import Reader

    return Reader(str(folder / "journal")).uid


def test_the_download_is_what_the_command_prints(stage: Stage) -> None:
    reply = stage.viewer.get(f"{SAMPLE}/story.json")
    assert reply.json() == stage.shown()
    assert reply.headers["Content-Disposition"] == 'attachment; filename="t-m-s0-1.json"'


def test_a_failing_call_and_a_failed_sample_say_why(stage: Stage) -> None:
    assert f"LookupError: {EVIL}" in stage.page(SAMPLE).text
    page = stage.page("/runs/agents/r/samples/t/bad/s0/1")
    assert "content_filter" in page.text
    assert EVIL in page.text
    found = stage.data("/runs/agents/r/samples/t/bad/s0/1")
    assert found["story"]["status"] == "failed"
    assert any(each.startswith("holdfast retry r t/bad/s0/1") for each in found["commands"].values())


def test_strange_names_lead_to_their_pages_and_neighbours_are_linked(stage: Stage) -> None:
    key = stage.data(f"{SAMPLE[:-1]}2")["neighbours"]["next"]
    address = Links().sample(REF, key)
    assert STRANGE_ID in unquote(unquote(address))
    page = stage.page(address)
    assert STRANGE_ID in page.text
    assert f"{SAMPLE[:-1]}2" in page.addresses()
    beside = stage.data(SAMPLE)["neighbours"]
    assert (beside["previous"], beside["models"]) == ("", ["t/other/s0/1", "t/bad/s0/1"])
    for each in page.addresses():
        if each.startswith("/runs/") and "#" not in each:
            assert stage.viewer.get(each).status in (200, 404 if each.rstrip("/").endswith(_OTHER_PARTS) else 200), each


_OTHER_PARTS = ("/samples", "/errors", "/compare", "/profile", "/lineage", "/spec")
"""Pages of the run that the navigation names."""


def test_repeats_and_other_models_are_side_by_side(stage: Stage) -> None:
    found = stage.data("/runs/agents/r/repeats/t/m/s0")
    assert [(each["model"], [one["repeat"] for one in each["repeats"]]) for each in found["models"]] == [
        ("m", [1, 2]),
        ("other", [1, 2]),
        ("bad", [1, 2]),
    ]
    own = found["models"][0]["repeats"][0]
    assert (own["output"], own["same"], own["scores"]) == (
        f"done after {TURNS}",
        2,
        {"exact_match": True, "judged": True},
    )
    assert own["dollars"] == pytest.approx(stage.shown()["attempts"][0]["dollars"])
    page = stage.page("/runs/agents/r/repeats/t/m/s0")
    assert "2 answers, all are equal." in page.text
    assert "other answer" in page.text
    assert {SAMPLE, "/runs/agents/r/samples/t/other/s0/2"} <= set(page.addresses())
    assert stage.data("/runs/agents/r/repeats/t/other/s0")["models"][0]["model"] == "other"
    assert stage.viewer.get("/runs/agents/r/repeats/t/m/nothing").status == 404


def test_an_earlier_record_shows_the_sample_as_it_was(stage: Stage) -> None:
    story = stage.shown()
    step = story["attempts"][0]["steps"][4]["n"]
    found = stage.data(f"{SAMPLE}?at={step}")
    assert (found["story"]["status"], found["story"]["answer"], found["story"]["scores"]) == ("unfinished", None, [])
    assert [each["n"] for each in found["story"]["attempts"][0]["steps"]][-1] == step
    page = stage.page(f"{SAMPLE}?at={step}")
    assert f"as it was after record {step}" in page.text
    assert "There is no answer yet." in page.text
    assert all("at=" in each for each in page.addresses() if "/samples/" in each)


def test_a_damaged_file_is_an_error_and_a_damaged_run_says_so(stage: Stage, tmp_path: Path) -> None:
    store = tmp_path / "runs"
    shutil.copytree(stage.store, store)
    (blob,) = [each for each in (store / "agents" / "r" / "blobs").iterdir() if each.read_bytes() == PIXEL]
    blob.write_bytes(PIXEL[:-1] + b"!")
    journal = max((store / "agents" / "r" / "journal").iterdir(), key=lambda each: each.stat().st_size)
    content = bytearray(journal.read_bytes())
    content[len(content) // 2] ^= 0xFF
    journal.write_bytes(content)
    with viewing(store) as viewer:
        reply = viewer.get(f"/runs/agents/r/blobs/{blob.name}")
        assert reply.status == 422
        assert "is damaged" in reply.text
        reply = viewer.get("/runs/agents/r/samples/t/other/s0/1")
        assert reply.status == 200
        assert 'class="problem"' in reply.text
        assert viewer.get("/api/runs/agents/r/samples/t/other/s0/1").json()["damage"]


@pytest.mark.parametrize("path", ["", "/records", "/records/5", "/steps/5", "/story.json", "/text", "/records/5/line"])
def test_nothing_of_a_sample_is_shown_without_the_token(stage: Stage, path: str) -> None:
    assert stage.viewer.get(f"{SAMPLE}{path}", Authorization="Bearer wrong").status == 401


@pytest.mark.parametrize(
    "path",
    ["t/m/nothing/1", "t/m/s0/3", "t/m/s0/x", "t/m/s0/99999999999999999999", "t/nobody/s0/1"],
)
def test_what_does_not_exist_is_not_found(stage: Stage, path: str) -> None:
    for lead in ("", "/api"):
        assert stage.viewer.get(f"{lead}/runs/agents/r/samples/{path}").status == 404


def test_a_step_that_is_no_number_is_a_wrong_value(stage: Stage) -> None:
    for lead in ("", "/api"):
        assert stage.viewer.get(f"{lead}/runs/agents/r/samples/t/m/s0/1?step=x").status == 400
