"""Scores that are set in the browser: only with --edit, only from the server's own pages, with author and reason."""

import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.e2e.commands import call, snapshot, write_spec
from tests.e2e.live_runs import RUN, Stage, alive, gate, stage, wait_for
from tests.e2e.view.viewer import Viewer, viewing

KEY = "sums/arith/s0001/1"
SAMPLE = f"/runs/sums/{RUN}/samples/{KEY}"
FORM = {"scorer": "numeric", "value": "false", "reason": "I <b>read</b> it", "author": "ann"}


def shown(folder: Path, key: str = KEY) -> Any:
    return call("show", RUN, key, "--json", "--store", folder / "runs", cwd=folder).json()


def form_token(viewer: Viewer, path: str = SAMPLE) -> str:
    found = re.search(r'name="form_token" value="([0-9a-f]{64})"', viewer.get(path).text)
    assert found is not None
    return found[1]


def make_run(folder: Path) -> Path:
    write_spec(folder, 2)
    assert call("run", "eval.yaml", "--id", RUN, "--store", folder / "runs", cwd=folder).code == 0
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For tests that change nothing."""
    return make_run(tmp_path_factory.mktemp("scored"))


@pytest.fixture(scope="module")
def viewer(folder: Path) -> Iterator[Viewer]:
    with viewing(folder / "runs", "--edit") as found:
        yield found


def test_a_score_is_recorded_with_its_author_and_reason_and_counts(tmp_path: Path) -> None:
    with viewing(make_run(tmp_path) / "runs", "--edit") as viewer:
        check_recorded(tmp_path, viewer)


def check_recorded(folder: Path, viewer: Viewer) -> None:
    reply = viewer.post(f"{SAMPLE}/scores", {**FORM, "form_token": form_token(viewer)})
    assert (reply.status, reply.headers["Location"]) == (303, f"{SAMPLE}#scores")
    (score,) = [each for each in shown(folder)["scores"] if each["current"]]
    assert (score["value"], score["author"], score["reason"]) == (False, "ann", "I <b>read</b> it")
    page = viewer.get(SAMPLE).text
    assert "I &lt;b&gt;read&lt;/b&gt; it" in page
    assert "ann, " in page
    assert "1 earlier or replaced score" in page
    summary = call("show", RUN, "--json", "--store", folder / "runs", cwd=folder).json()
    assert summary["scores"][0]["mean"] == 0.0


def test_a_score_of_a_sharded_run_is_recorded_in_the_shard_and_shown_at_once(tmp_path: Path) -> None:
    write_spec(tmp_path, 4)
    store = tmp_path / "runs"
    run = ("run", "eval.yaml", "--id", RUN, "--store", store, "--shards", "2", "--this-host")
    assert call(*run, cwd=tmp_path).code == 0
    with viewing(store, "--edit") as viewer:
        listed = viewer.get("/api/runs").json()["runs"]
        assert listed[0]["summary"]["scores"][0]["edited"] == 0
        check_recorded_in_shard(store, viewer)
        (changed,) = viewer.get("/api/runs").json()["runs"]
        assert changed["summary"]["scores"][0]["edited"] == 1, "the list of runs shows it too"
    another = {"HOLDFAST_CACHE": str(tmp_path / "another cache")}
    found = call("show", RUN, KEY, "--json", "--store", store, cwd=tmp_path, env=another).json()
    assert [each["author"] for each in found["scores"] if each["current"]] == ["ann"]


def check_recorded_in_shard(store: Path, viewer: Viewer) -> None:
    before = snapshot(store)
    reply = viewer.post(f"{SAMPLE}/scores", {**FORM, "form_token": form_token(viewer)})
    assert reply.status == 303
    assert "I &lt;b&gt;read&lt;/b&gt; it" in viewer.get(SAMPLE).text, "the page after saving shows the score"
    assert snapshot(store) != before


def test_the_list_and_the_evaluation_are_kept_when_a_score_is_saved(tmp_path: Path) -> None:
    with viewing(make_run(tmp_path) / "runs", "--edit") as viewer:
        (evaluation,) = {each["evaluation"] for each in shown(tmp_path)["scores"]}
        kept = urlencode({"evaluation": evaluation, "list": "status=finished&sort=-seconds"})
        page = viewer.get(f"{SAMPLE}?{kept}").text
        assert f'action="{escape(f"{SAMPLE}/scores?{kept}")}"' in page
        reply = viewer.post(f"{SAMPLE}/scores?{kept}", {**FORM, "form_token": form_token(viewer)})
        assert (reply.status, reply.headers["Location"]) == (303, f"{SAMPLE}?{kept}#scores")


def test_the_name_of_the_user_is_suggested(viewer: Viewer) -> None:
    assert 'name="author" value="tester"' in viewer.get(SAMPLE).text


def test_without_edit_there_is_no_form_and_nothing_can_be_written(folder: Path) -> None:
    with viewing(folder / "runs", "--edit") as editable:
        token = form_token(editable)
    with viewing(folder / "runs") as viewer:  # the token of forms belongs to the user, so it is even the right one
        assert '<form class="edit"' not in viewer.get(SAMPLE).text
        assert "form_token" not in viewer.get(SAMPLE).text
        before = snapshot(folder / "runs")
        reply = viewer.post(f"{SAMPLE}/scores", {**FORM, "form_token": token})
        assert reply.status == 403
        assert "--edit" in reply.text
        assert snapshot(folder / "runs") == before


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "", "http://127.0.0.1:1", "http://localhost.evil.example"]
)
def test_a_form_of_another_site_is_refused(folder: Path, viewer: Viewer, origin: str) -> None:
    token = form_token(viewer)
    before = snapshot(folder / "runs")
    reply = viewer.post(f"{SAMPLE}/scores", {**FORM, "form_token": token}, Origin=origin)
    assert reply.status == 403
    assert snapshot(folder / "runs") == before


@pytest.mark.parametrize("token", ["", "0" * 64, "ü"])
def test_a_form_without_the_right_token_is_refused(folder: Path, viewer: Viewer, token: str) -> None:
    before = snapshot(folder / "runs")
    assert viewer.post(f"{SAMPLE}/scores", {**FORM, "form_token": token}).status == 403
    assert snapshot(folder / "runs") == before


def test_neither_the_cookie_nor_the_form_is_enough_without_the_servers_token(viewer: Viewer) -> None:
    token = form_token(viewer)
    reply = viewer.post(f"{SAMPLE}/scores", {**FORM, "form_token": token}, Authorization="Bearer wrong")
    assert reply.status == 401


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"reason": " "}, "reason"),
        ({"author": ""}, "author"),
        ({"scorer": "nothing"}, "no score of"),
        ({"value": "perhaps"}, "right or wrong"),
        ({"evaluation": "nothing"}, "has no evaluation"),
    ],
)
def test_a_score_that_makes_no_sense_is_refused_with_a_sentence(
    folder: Path, viewer: Viewer, changes: dict[str, str], says: str
) -> None:
    before = snapshot(folder / "runs")
    reply = viewer.post(f"{SAMPLE}/scores", {**FORM, "form_token": form_token(viewer), **changes})
    assert reply.status == 400
    assert says in reply.text
    assert snapshot(folder / "runs") == before


def test_looking_never_writes_and_an_address_cannot_set_a_score(folder: Path, viewer: Viewer) -> None:
    before = snapshot(folder / "runs")
    assert viewer.get(f"{SAMPLE}/scores?scorer=numeric&value=false&reason=x&author=y").status in (404, 405)
    assert snapshot(folder / "runs") == before


def test_a_run_as_it_was_has_no_form(viewer: Viewer) -> None:
    assert "form_token" not in viewer.get(f"{SAMPLE}?at=5").text


def test_a_live_run_records_the_score_itself_and_the_page_shows_what_it_does(tmp_path: Path) -> None:
    door = gate(tmp_path, free=1)
    course: Stage = stage(tmp_path, 3, model=door.model, concurrency={"samples": 1})
    with alive(course) as process, viewing(course.store, "--edit") as viewer:
        wait_for(lambda: course.has_begun() and course.show()["finished"] == 1, "the first answer")
        other = SAMPLE.replace("s0001", "s0002")
        wait_for(lambda: "in progress" in viewer.get(other).text, "the page says what the sample does")
        assert "waiting for the model" in viewer.get(other).text
        assert 'data-events="/api/runs/sums/' in viewer.get(other).text
        reply = viewer.post(f"{SAMPLE}/scores", {**FORM, "form_token": form_token(viewer)})
        assert reply.status == 303
        (score,) = [each for each in shown(tmp_path)["scores"] if each["current"]]
        assert (score["value"], score["author"]) == (False, "ann")
        assert process.poll() is None, "the run is still live: it has written the record"
        door.open()
        process.wait(60)
        wait_for(lambda: "finished" in viewer.get(other).text, "the page shows the answer")
    assert [each["author"] for each in shown(tmp_path)["scores"] if each["current"]] == ["ann"]
