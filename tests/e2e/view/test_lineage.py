"""Lineage, time travel, profile, spec and overview over HTTP, on runs that were really killed, resumed, forked and
extended.
"""

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from holdfast.journal import Entry, Reader, journal_folder
from holdfast.view.pages.list_state import encode_list
from tests.e2e.commands import call, finish, shown, start, wait_until, write_spec
from tests.e2e.live_runs import ASK_TWICE
from tests.e2e.view.served import Served, links_in, query_of, serving

ROWS = 20
SAMPLES = 2 * ROWS
HOSTILE = "<script>alert('x')</script>"
PRICE = {"input": 1000.0, "output": 2000.0}
DOLLARS_A_TOKEN = PRICE["output"] / 1e6


def records(run: Path) -> list[Any]:
    return [each.line for each in Reader(journal_folder(str(run))).read() if isinstance(each, Entry)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`killed`: killed twice and resumed with other limits each time. `forked` from it. `grown`: extended."""
    folder = tmp_path_factory.mktemp("lives")
    (folder / "twice.py").write_text(ASK_TWICE)
    models = [
        {"name": name, "provider": "mock", "price": PRICE, "options": {"reply": reply, "latency_seconds": 0.4}}
        for name, reply in (("arith", "8"), ("other", ["16", "no idea"]))
    ]
    task = {"solver": "twice:ask_twice", "scorers": ["numeric", "exact_match"]}
    spec = write_spec(folder, ROWS, models=models, task=task, description=HOSTILE, tags=[HOSTILE])
    store = folder / "runs"
    for limit, least in ((4, 5), (6, 15)):
        command = ("run", spec, "--id", "killed", "--store", store, "--set", f"concurrency.samples={limit}")
        with start(*command, cwd=folder) as process:
            reached = wait_until(partial(has_begun_others, store / "sums" / "killed", least), process)
            finish(process, signal.SIGKILL)
        assert reached, "the run ended before it was killed"
    for again in (
        ("run", spec, "--id", "killed", "--set", "concurrency.samples=40"),
        ("fork", "killed", "--id", "forked"),
        ("run", spec, "--id", "grown", "--limit", "6"),
        ("extend", "grown", "--limit", "9"),
        ("note", "grown", HOSTILE),
    ):
        done = call(*again, "--store", store, cwd=folder)
        assert done.code == 0, done.said
    return store


def keys_with(run: Path, kind: str) -> set[bytes]:
    """The keys with records of this kind in the plain segments, which are those of the last life: a resume seals the
    others. Fast enough to be asked all the time.
    """
    found = set[bytes]()
    for path in run.glob("journal/*.jsonl"):
        with contextlib.suppress(FileNotFoundError):  # it was sealed in the meantime
            found.update(re.findall(rf'"t":"{re.escape(kind)}","k":"([^"]+)"'.encode(), path.read_bytes()))
    return found


def has_finished(run: Path, least: int) -> bool:
    return len(keys_with(run, "sample.finished")) >= least


def has_begun_others(run: Path, least: int) -> bool:
    """Also two samples that have the first of their two responses: a resume replays these. Counted by key: a sample
    that is replayed has only its second response in this life.
    """
    return has_finished(run, least) and len(keys_with(run, "step") - keys_with(run, "sample.finished")) >= 2


@pytest.fixture(scope="module")
def viewer(store: Path) -> Iterator[Served]:
    with serving(store) as found:
        yield found


def test_each_life_has_its_end_its_changes_and_its_samples(store: Path, viewer: Served) -> None:
    report = viewer.json("/runs/sums/killed/lineage")["lineage"]
    lives = report["lives"]
    assert [(each["began"], each["ended"]) for each in lives] == [
        ("started", "killed"),
        ("resumed", "killed"),
        ("resumed", "completed"),
    ]
    assert report["kills"] == 2
    assert [each["changes"] for each in lives[1:]] == [
        [{"field": "concurrency.samples", "old": 4, "new": 6, "kind": "throughput"}],
        [{"field": "concurrency.samples", "old": 6, "new": 40, "kind": "throughput"}],
    ]
    assert all(each["is_throughput_only"] for each in lives)
    summary = shown("killed", store)
    assert sum(each["finished"] for each in lives) == summary["finished"] == SAMPLES
    assert sum(each["steps"] for each in lives) == summary["steps"]["live"]
    assert sum(each["replayed_steps"] for each in lives) == summary["steps"]["replayed"]
    for name in ("input_tokens", "output_tokens", "requests"):
        assert sum(each["usage"].get(name, 0) for each in lives) == summary["usage"].get(name, 0)
    assert sum(each["dollars"] for each in lives) == pytest.approx(summary["cost"]["dollars"])
    assert report["replayed"]["responses"] > 0
    assert report["replayed"]["dollars"] == pytest.approx(summary["cost"]["saved_dollars"])


def test_the_records_of_lives_do_not_overlap_and_their_samples_are_theirs(store: Path, viewer: Served) -> None:
    lines = records(store / "sums" / "killed")
    lives = viewer.json("/runs/sums/killed/lineage")["lineage"]["lives"]
    every: list[str] = []
    for life in lives:
        mine = [line for line in lines if life["first_n"] <= line.n <= life["last_n"]]
        wanted = [str(line.k) for line in mine if line.t == "sample.finished"]
        assert len(wanted) == life["finished"]
        listed, address = list[str](), f"/runs/sums/killed/lineage?life={life['number']}"
        while True:
            page = viewer.json(address)["chosen"]
            listed += [each["key"] for each in page["samples"]]
            if page["next"] is None:
                break
            address = f"/runs/sums/killed/lineage?life={life['number']}&after={page['next']}"
        assert listed == wanted
        every += listed
    assert len(every) == len(set(every)) == SAMPLES
    assert all(each["last_n"] < later["first_n"] for each, later in itertools.pairwise(lives))


def test_what_was_not_paid_again_is_what_was_recorded_before(store: Path, viewer: Served) -> None:
    lines = records(store / "sums" / "killed")
    lives = viewer.json("/runs/sums/killed/lineage")["lineage"]["lives"]
    for life in lives:
        before = [line for line in lines if line.n < life["first_n"]]
        assert life["kept_finished"] == sum(line.t == "sample.finished" for line in before)
        assert life["kept"]["responses"] == sum(line.t == "step" for line in before)
    assert lives[0]["kept"] == {"responses": 0, "usage": {}, "dollars": 0.0}
    assert lives[2]["kept"]["dollars"] == pytest.approx(lives[0]["dollars"] + lives[1]["dollars"])
    assert lives[1]["kept_seconds"] > 0


def test_a_fork_leads_to_its_parent_and_back(viewer: Served) -> None:
    found = viewer.json("/runs/sums/forked/lineage")
    assert found["parent"] == {"experiment": "sums", "run_id": "killed", "uid": "", "at": None, "store": 0}
    assert found["lineage"]["taken_steps"] == 2 * SAMPLES
    assert found["lineage"]["lives"][0]["began"] == "forked"
    assert found["lineage"]["kills"] == 0
    back = viewer.json("/runs/sums/killed/lineage")["forks"]
    assert [each["run_id"] for each in back] == ["forked"]
    assert "/runs/sums/killed" in links_in(viewer.html("/runs/sums/forked/lineage"))


def test_an_extension_is_a_life_that_changed_a_result(viewer: Served) -> None:
    lives = viewer.json("/runs/sums/grown/lineage")["lineage"]["lives"]
    assert [(each["began"], each["finished"], each["is_throughput_only"]) for each in lives] == [
        ("started", 12, True),
        ("extended", 6, False),
    ]


@pytest.mark.parametrize(("number", "status"), [("0", 404), ("9", 404), ("x", 400), ("99999999999999999999", 400)])
def test_a_life_that_there_is_not_is_not_found(viewer: Served, number: str, status: int) -> None:
    assert viewer.get(f"/runs/sums/killed/lineage?life={number}")[0] == status


@pytest.mark.parametrize("after", ["1.1.1.x", "999.1.0.aaaa", "<script>", "1.999.0.aa"])
def test_a_forged_cursor_is_an_error_and_not_a_crash(viewer: Served, after: str) -> None:
    status, text = viewer.get(f"/runs/sums/killed/lineage?life=1&after={after}")
    assert status in (200, 404)
    assert "<script>" not in text
    assert "Traceback" not in text


def cut_copy(run: Path, last: int, store: Path) -> None:
    """A copy of a run whose journal was cut after a record: all segments as plain lines, up to that one."""
    target = store / "sums" / run.name
    shutil.copytree(run, target, ignore=shutil.ignore_patterns("lease.json", "lock", "journal"))
    os.makedirs(target / "journal")
    number, lines = 0, list[bytes]()
    for found in Reader(journal_folder(str(run))).read():
        assert isinstance(found, Entry)
        if found.line.n > last:
            break
        if found.line.t == "segment":
            if lines:
                (target / "journal" / f"{number:06d}.jsonl").write_bytes(b"".join(lines))
            number, lines = found.segment, []
        lines.append(raw_line(run, found))
    (target / "journal" / f"{number:06d}.jsonl").write_bytes(b"".join(lines))


def raw_line(run: Path, entry: Entry) -> bytes:
    line = entry.line
    head = f'{{"n":{line.n},"at":"{line.at}","t":"{line.t}",'
    key = f'"k":{json.dumps(line.k, ensure_ascii=False)},' if line.k is not None else ""
    return f'{head}{key}"d":{bytes(line.d).decode()},"x":"{line.x}"}}\n'.encode()


VOLATILE = ("ref", "durability", "folder", "bytes", "command", "commands", "stops", "live", "forks", "parent", "others")


def without_places(value: Any) -> Any:
    """Without what differs because it is another folder."""
    if isinstance(value, dict):
        return {name: without_places(each) for name, each in value.items() if name not in VOLATILE}
    return [without_places(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("part", ["", "/lineage", "/profile", "/spec", "/compare"])
@pytest.mark.parametrize(
    "where",
    [
        "first kill",
        "middle",
        *(pytest.param(each, marks=pytest.mark.long) for each in ("early", "between", "second kill", "last")),
    ],
)
def test_the_run_as_it_was_is_the_run_whose_journal_was_cut_there(
    store: Path, viewer: Served, tmp_path: Path, part: str, where: str
) -> None:
    run = store / "sums" / "killed"
    lives = viewer.json("/runs/sums/killed/lineage")["lineage"]["lives"]
    last = {
        "early": lives[0]["first_n"] + 5,
        "first kill": lives[0]["last_n"],
        "between": lives[1]["first_n"],
        "second kill": lives[1]["last_n"],
        "middle": middle_of(lives[2]),
        "last": lives[2]["last_n"],
    }[where]
    cut_copy(run, last, tmp_path / "cut")
    with serving(tmp_path / "cut") as other:
        wanted = without_places(other.json(f"/runs/sums/killed{part}"))
    found = without_places(viewer.json(f"/runs/sums/killed{part}?at={last}"))
    if where != "last":
        assert "interrupted" in str(wanted) or part in ("/profile", "/spec")
        assert "interrupted" not in str(found), "a process was running when the record was written"
        found, wanted = without_status(found), without_status(wanted)
    assert found == wanted


def middle_of(life: dict[str, Any]) -> int:
    """A record in the middle of a life: how many there are depends on when the lives before it were killed."""
    return int(life["first_n"] + life["last_n"]) // 2


def without_status(found: dict[str, Any]) -> dict[str, Any]:
    """Without what follows from whether a process was running at that record, which a cut journal does not tell."""
    for each in (
        found.get("summary", {}),
        found.get("report", {}),
        found.get("lineage", {}),
        found.get("profile", {}),
        found,
    ):
        for name in ("status", "reason", "commands", "kills"):
            each.pop(name, None)
    for life in found.get("lineage", {}).get("lives", [])[-1:]:
        life["ended"] = life["reason"] = ""
    for run in found.get("runs", []):
        run.pop("status", None)
    (found.get("result") or {}).pop("warnings", None)
    return found


def test_a_run_of_the_past_that_had_not_ended_was_running(viewer: Served) -> None:
    lives = viewer.json("/runs/sums/killed/lineage")["lineage"]["lives"]
    n = middle_of(lives[2])
    past = viewer.json(f"/runs/sums/killed/lineage?at={n}")["lineage"]
    assert (past["status"], past["reason"]) == ("running", f"when record {n:,} was written")
    assert [each["ended"] for each in past["lives"]] == ["killed", "killed", "running"]


def test_a_page_of_the_past_says_so_and_its_links_stay_there(viewer: Served) -> None:
    page = viewer.html("/runs/sums/killed?at=30")
    assert "as it was after record 30" in page
    tabs = [each for each in links_in(page) if each.startswith("/runs/sums/killed/")]
    assert tabs
    assert all("at=" in each for each in tabs)
    assert "data-events" not in page, "the past does not change"


def test_a_moment_is_the_last_record_by_then(store: Path, viewer: Served) -> None:
    lines = records(store / "sums" / "killed")
    moment = lines[len(lines) // 2].at
    wanted = max(line.n for line in lines if line.at <= moment)
    found = viewer.json(f"/runs/sums/killed?moment={moment}")
    assert found["ref"]["at"] == wanted
    assert without_places(found) == without_places(viewer.json(f"/runs/sums/killed?at={wanted}"))
    assert viewer.get("/runs/sums/killed?moment=never")[0] == 404


def test_the_stops_are_the_ends_of_lives(viewer: Served) -> None:
    found = viewer.json("/runs/sums/killed")
    lives = viewer.json("/runs/sums/killed/lineage")["lineage"]["lives"]
    assert [each["n"] for each in found["stops"]] == [
        lives[0]["first_n"],
        lives[0]["last_n"],
        lives[1]["last_n"],
        lives[2]["last_n"],
    ]
    page = viewer.html("/runs/sums/killed")
    assert f"/runs/sums/killed?at={lives[0]['last_n']}" in links_in(page)


def test_the_profile_is_that_of_the_command(store: Path, viewer: Served) -> None:
    done = call("show", "killed", "--profile", "--json", "--store", store, cwd=store)
    assert viewer.json("/runs/sums/killed/profile")["profile"] == done.json()
    assert viewer.html("/runs/sums/killed/profile").count("<svg") == 2


def test_the_overview_is_that_of_the_commands(store: Path, viewer: Served) -> None:
    found = viewer.json("/runs/sums/killed")
    assert found["summary"] == shown("killed", store)
    summary = found["summary"]
    assert summary["finished"] + summary["failed"] + summary["unfinished"] == summary["planned"]
    assert [each["evaluation"] for each in found["evaluations"]] == summary["evaluations"]
    commands = found["commands"]
    assert f"holdfast report killed --store {store}" in commands
    for line in commands:
        assert line.startswith("holdfast ")
    assert sum(each["counts"][0][1] for each in found["latency"]) > 0


def test_another_evaluation_can_be_chosen(store: Path, viewer: Served) -> None:
    done = call("score", "grown", "--scorers", "contains", "--name", HOSTILE, "--store", store, cwd=store)
    assert done.code in (0, 2), done.said
    if done.code:  # the name of the scorer differs between versions
        done = call("score", "grown", "--scorers", "includes", "--name", HOSTILE, "--store", store, cwd=store)
    assert done.code == 0, done.said
    found = viewer.json("/runs/sums/grown")
    assert len(found["evaluations"]) == 2
    first = found["evaluations"][0]["evaluation"]
    page = viewer.html("/runs/sums/grown")
    assert f"/runs/sums/grown?evaluation={first}" in links_in(page)
    assert "<script>alert" not in page
    again = ("score", "grown", "--name", HOSTILE, "--store", store)
    assert call(*again, "--scorers", "numeric", cwd=store).code == 0
    (sample, *_) = viewer.json("/runs/sums/grown/samples")["samples"]
    names = viewer.json(f"/runs/sums/grown/samples/{sample['key']}")["evaluations"].values()
    assert [name.partition(", ")[0] for name in names if name.startswith(HOSTILE)] == [f"{HOSTILE} #1", f"{HOSTILE} #2"]
    chosen = viewer.json(f"/runs/sums/grown?evaluation={first}")
    assert {each["scorer"] for each in chosen["summary"]["scores"]} == {"numeric", "exact_match"}
    for each in found["evaluations"]:
        check_means_open(viewer, each["evaluation"], each["scorers"])
    check_kept(viewer, f"/runs/sums/grown/samples/{sample['key']}", first)


def check_kept(viewer: Served, sample: str, evaluation: str) -> None:
    """The tabs, and the links from a sample to its steps and records and back, keep the evaluation that is shown."""
    pages = {"", "/samples", "/errors", "/compare"}
    for address in (*(f"/runs/sums/grown{page}" for page in pages), sample):
        tabs = viewer.html(f"{address}?evaluation={evaluation}").partition('class="tabs"')[2].partition("</nav>")[0]
        kept = {each for each in links_in(tabs) if query_of(each).get("evaluation") == [evaluation]}
        assert {each.partition("?")[0].removeprefix("/runs/sums/grown") for each in kept} == pages, address
    query = {"evaluation": evaluation, "list": encode_list({"evaluation": evaluation, "wrong": "1"})}
    page = viewer.html(f"{sample}?{urlencode(query)}")
    for part in ("/records?", "/records/", "/steps/"):
        record = next(each for each in links_in(page) if each.startswith(f"{sample}{part}"))
        back = [each for each in links_in(viewer.html(record)) if each.startswith(f"{sample}?")]
        assert back
        for address in (record, *back):
            assert query_of(address) == {name: [value] for name, value in query.items()}


def check_downloads(viewer: Served, sample: str, scorers: set[str]) -> None:
    """The data and the file that the page of a sample offers have the scores that it shows."""
    found = [each for each in links_in(viewer.html(sample)) if each.startswith("/api/") or "/story.json" in each]
    assert len(found) == 2
    for address in found:
        status, text = viewer.get(address)
        assert status == 200
        content = json.loads(text)
        scores = content.get("story", content)["scores"]
        assert {each["scorer"] for each in scores if each["current"]} == scorers


def check_means_open(viewer: Served, evaluation: str, scorers: list[str]) -> None:
    """Every mean of an evaluation leads to the samples that it is the mean of."""
    opened = set()
    for address in links_in(viewer.html(f"/runs/sums/grown?evaluation={evaluation}")):
        query = {name: values[0] for name, values in query_of(address).items()}
        if "scorer" not in query:
            continue
        found = viewer.json(address)
        assert found["evaluation"] == evaluation
        values = [float(each["scores"][query["scorer"]]) for each in found["samples"]]
        report = viewer.json(f"/runs/sums/grown?evaluation={evaluation}")["report"]
        cell = next(one for one in report["cells"] if (one["task"], one["model"]) == (query["task"], query["model"]))
        summary = next(one for one in cell["scorers"] if one["scorer"] == query["scorer"])
        assert sum(values) / len(values) == pytest.approx(summary["summary"]["mean"])
        opened.add(query["scorer"])
        sample = next(each for each in links_in(viewer.html(address)) if "/samples/sums/" in each)
        scores = viewer.json(sample)["story"]["scores"]
        assert {each["scorer"] for each in scores if each["current"]} == set(scorers)
        check_downloads(viewer, sample, set(scorers))
    assert opened == set(scorers)


def test_the_spec_and_each_change_of_it_are_shown(store: Path, viewer: Served) -> None:
    found = viewer.json("/runs/sums/killed/spec")
    assert found["text"] == (store / "sums" / "killed" / "spec.yaml").read_text()
    assert [each["began"] for each in found["versions"]] == ["started", "resumed", "resumed"]
    assert [line for line in found["versions"][1]["diff"] if line[0] in "+-"] == ["-  samples: 4", "+  samples: 6"]


@pytest.mark.parametrize("part", ["", "/lineage", "/profile", "/spec"])
@pytest.mark.parametrize("run", ["killed", "forked", "grown"])
def test_hostile_descriptions_tags_and_notes_are_texts(viewer: Served, run: str, part: str) -> None:
    page = viewer.html(f"/runs/sums/{run}{part}")
    assert "<script>alert" not in page
    assert "&lt;script&gt;" in page or part in ("/profile", "/lineage")


def test_a_live_run_shows_its_process(store: Path, tmp_path: Path) -> None:
    (tmp_path / "twice.py").write_text(ASK_TWICE)
    model = {"options": {"reply": "8", "latency_seconds": 0.4}}
    spec = write_spec(tmp_path, 60, model=model, task={"solver": "twice:ask_twice"}, concurrency={"samples": 3})
    live = tmp_path / "runs"
    with start("run", spec, "--id", "live", "--store", live, cwd=tmp_path) as process:
        assert wait_until(lambda: has_finished(live / "sums" / "live", 3), process)
        with serving(live) as viewer:
            found = viewer.json("/runs/sums/live/lineage")
            assert [each["ended"] for each in found["lineage"]["lives"]] == ["running"]
            assert found["live"]
            assert 'data-events="/api/runs/sums/live/events"' in viewer.html("/runs/sums/live/lineage")
            compared = viewer.json("/runs/sums/live/compare")
            assert "has one model for each task" in compared["problem"]
        finish(process, signal.SIGKILL)
